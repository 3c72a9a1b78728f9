from __future__ import annotations

import torch
from torch import Tensor

from adjoint.torch_private.effects import is_effectful
from tests.effects import effectful


@torch.library.custom_op("adjoint_test_effects::quiet", mutates_args=())
def quiet(x: Tensor) -> Tensor:
    return x * 1


@torch.library.custom_op("adjoint_test_effects::loud", mutates_args=())
def loud(x: Tensor) -> Tensor:
    return x * 1


effectful(torch.ops.adjoint_test_effects.loud.default)


def test_which_ops_have_effects() -> None:
    assert is_effectful(torch.ops.adjoint_test_effects.loud.default)
    assert not is_effectful(torch.ops.adjoint_test_effects.quiet.default)
    assert not is_effectful(torch.ops.aten.sin.default)
    assert is_effectful(torch.ops.aten._print.default)
