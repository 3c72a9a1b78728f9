from __future__ import annotations

import torch

from adjoint.graph.operations import with_data
from tests.lower.compositions.samples import Row, X, Y, cases, check

aten = torch.ops.aten


def fma(*args: torch.Tensor) -> torch.Tensor:
    # Dynamo imports this module where it writes an optimizer's step with the operator.
    from torch._inductor import inductor_prims

    if not hasattr(inductor_prims, "fma"):
        raise NotImplementedError("this torch has no prims::fma")
    made: torch.Tensor = inductor_prims.fma(*args)
    return made


def rows_of(x: torch.Tensor) -> torch.Tensor:
    return torch.arange(3) + 1


ROWS: list[Row] = [
    (aten.stack.default, lambda x, y: aten.stack([x, y], -1), [X, Y]),
    (aten.roll.default, lambda x: aten.roll(x, [1, -2], [0, 1]), [X]),
    (aten.roll.default, lambda x: aten.roll(x, [7, 0], [-1, 0]), [X]),
    (aten.roll.default, lambda x: aten.roll(x.t(), [4]), [X]),
    (with_data, with_data, [X, Y]),
    (aten.copy.default, lambda x, y: aten.copy(x, y[:1]), [X, Y]),
    (aten.copy.default, lambda x, y: aten.copy(x.t(), y.t().contiguous()), [X, Y]),
    ("prims::fma", lambda x, y: fma(x, y, x), [X, Y]),
    (aten._unsafe_index.Tensor, lambda x: aten._unsafe_index(x, [rows_of(x)]), [X]),
]


@cases(ROWS)
def test_it_computes_what_eager_does(row: Row, dtype: torch.dtype) -> None:
    check(row, dtype)
