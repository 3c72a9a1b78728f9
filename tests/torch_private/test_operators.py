from __future__ import annotations

import pytest
import torch

from adjoint.torch_private.operators import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    written_arguments,
)

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "written"),
    [
        (aten.add.Tensor, ()),
        (aten.view.default, ()),  # it returns an alias, but writes to nothing
        (aten.add_.Tensor, ("self",)),
        (aten.add.out, ("out",)),
        (aten.sort.values, ("values", "indices")),
        (aten._foreach_add_.Scalar, ("self",)),
    ],
)
def test_written_arguments(operator: OpOverload, written: tuple[str, ...]) -> None:
    assert written_arguments(operator) == written


def test_kinds_of_operators() -> None:
    assert isinstance(aten.add.Tensor, OpOverload)
    assert not isinstance(aten.add, OpOverload)
    assert isinstance(aten.add, OpOverloadPacket)
    assert isinstance(torch.ops.higher_order.cond, HigherOrderOperator)
