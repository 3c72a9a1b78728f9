from typing import Any

import pytest
import torch

from adjoint.rules.registry import COMPOSITIONS, NON_DIFFERENTIABLE
from adjoint.torch_private.operators import OpOverload
from tests.rules.rows import Function, is_right, real

prims = torch.ops.prims

CALLS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "sin": (lambda x: prims.sin(x), [(3,)]),
    "mul": (lambda x, y: prims.mul(x, y), [(3,), (3,)]),
    "convert": (lambda x: prims.convert_element_type(x, torch.float64).sin(), [(3,)]),
    "sum": (lambda x: prims.sum(x, [0, 2]).sin(), [(2, 3, 2)]),
    "prod": (lambda x: prims.prod(x, [0, 1]), [(2, 3)]),
    "amax": (lambda x: prims.amax(x, [1]), [(2, 3)]),
    "var": (lambda x: prims.var(x, [1], 1.0), [(2, 3)]),
    "reshape": (lambda x: prims.reshape(x, [4, 2]).sin(), [(2, 4)]),
    "rev": (lambda x: prims.rev(x, [0]).sin(), [(3,)]),
    "where": (lambda x, y: prims.where(x > 0, x, y).sin(), [(3,), (3,)]),
}


@pytest.mark.parametrize("name", CALLS)
def test_primitive_ops_have_two_derivatives(name: str) -> None:
    function, shapes = CALLS[name]
    is_right(function, *(real(*shape, seed=i) for i, shape in enumerate(shapes)))


COMPLEX = [prims.real.default, prims.imag.default, prims.conj.default, prims.conj_physical.default]


def test_a_composition_has_the_value_of_its_op() -> None:
    x, y = real(2, 3).detach().abs() + 1.5, real(2, 3, seed=1).detach().abs() + 1.5
    for op, made in COMPOSITIONS.items():
        if not isinstance(op, OpOverload):
            continue
        kinds = [str(argument.type) for argument in op._schema.arguments]
        if op.namespace != "prims" or kinds not in (["Tensor"], ["Tensor", "Tensor"]):
            continue
        inputs = [x, y][: len(kinds)]
        if op in COMPLEX:
            inputs = [x.to(torch.complex128)]
        if any(name in str(op) for name in ("acos.", "asin.", "atanh", "erf_inv", "ndtri")):
            inputs = [each / 10 for each in inputs]
        torch.testing.assert_close(made(*inputs), op(*inputs), msg=str(op))


@pytest.mark.parametrize(
    ("op", "arguments"),
    [
        (prims.broadcast_in_dim.default, ([2, 3, 2, 4], [1, 2])),
        (prims.transpose.default, ([1, 0],)),
        (prims.split_dim.default, (1, 2)),
        (prims.collapse_view.default, (0, 1)),
        (prims.collapse.default, (0, 1)),
        (prims.squeeze.default, ([],)),
        (prims.view_of.default, ()),
        (prims.copy_strided.default, ([2, 1],)),
        (prims.clone.default, ()),
    ],
    ids=str,
)
def test_views_have_the_value_of_their_composition(op: Any, arguments: tuple[Any, ...]) -> None:
    """Eager refuses to record them, so that they come from other graphs only."""
    x = real(3, 2).detach()
    torch.testing.assert_close(COMPOSITIONS[op](x, *arguments), op(x, *arguments))
    torch.testing.assert_close(
        COMPOSITIONS[prims.cat.default]([x, x], 0), prims.cat.default([x, x], 0)
    )


def test_steps_have_no_derivative() -> None:
    assert prims.floor.default in NON_DIFFERENTIABLE
