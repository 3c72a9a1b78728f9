from __future__ import annotations

import pytest
import torch

from adjoint.torch_private.operators import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    chunked_cross_entropy,
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


def test_the_loss_of_each_row_is_named_as_torch_names_it() -> None:
    op = chunked_cross_entropy()
    known = hasattr(torch.nn.functional, "linear_cross_entropy")
    assert op is None or (known and len(op._schema.arguments) == 9)
