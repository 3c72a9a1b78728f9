from functools import partial

import pytest
import torch
import torch.nn.functional as F

import adjoint
from tests.differentiation import bridged, check
from tests.rules.rows import Row, agrees, has_rule

ROWS = [
    Row("mm", torch.mm, [(2, 3), (3, 4)], complex=True),
    Row("mm-transposed", lambda x, y: torch.mm(x.t(), y.t()), [(3, 2), (4, 3)], complex=True),
    Row("bmm", torch.bmm, [(2, 2, 3), (2, 3, 4)], complex=True),
    Row("addmm", torch.addmm, [(4,), (2, 3), (3, 4)], complex=True),
    Row(
        "addmm-scaled",
        lambda b, x, y: torch.addmm(b, x, y, beta=2, alpha=3),
        [(2, 4), (2, 3), (3, 4)],
        complex=True,
    ),
    Row("baddbmm", torch.baddbmm, [(1, 4), (2, 2, 3), (2, 3, 4)], complex=True),
    Row("mv", torch.mv, [(2, 3), (3,)], complex=True),
    Row("addmv", lambda b, x, y: torch.addmv(b, x, y, alpha=2), [(2,), (2, 3), (3,)]),
    Row("dot", torch.dot, [(3,), (3,)], complex=True),
    Row("linear", torch.nn.functional.linear, [(2, 3), (4, 3), (4,)]),
    Row("empty", torch.mm, [(0, 3), (3, 4)]),
]

CONVOLUTIONS = [
    Row("conv1d", F.conv1d, [(2, 3, 7), (4, 3, 3), (4,)]),
    Row("conv2d", partial(F.conv2d, stride=2, padding=1), [(2, 3, 6, 7), (4, 3, 4, 3), (4,)]),
    Row("conv2d-no-bias", partial(F.conv2d, dilation=2), [(2, 2, 5, 6), (3, 2, 2, 2)]),
    Row("conv2d-groups", partial(F.conv2d, groups=2), [(2, 4, 4, 4), (6, 2, 3, 3), (6,)]),
    Row("conv3d", F.conv3d, [(1, 2, 3, 3, 3), (2, 2, 2, 2, 2), (2,)]),
    Row(
        "conv-transpose2d",
        partial(F.conv_transpose2d, stride=2, padding=1, output_padding=1),
        [(2, 3, 3, 4), (3, 2, 3, 3), (2,)],
    ),
    Row(
        "conv-transpose1d-groups",
        partial(F.conv_transpose1d, groups=2, dilation=2),
        [(2, 4, 5), (4, 3, 2), (6,)],
    ),
    Row("conv-complex", F.conv1d, [(2, 3, 7), (4, 3, 3)], complex=True),
]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_derivatives_are_eagers(row: Row) -> None:
    assert has_rule(row)
    agrees(row)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128], ids=str)
@pytest.mark.parametrize("of", [0, 1])
@pytest.mark.parametrize("by_columns", [False, True])
def test_a_gradient_lies_as_its_matrix(dtype: torch.dtype, of: int, by_columns: bool) -> None:
    shapes = [(3, 4), (4, 5)]
    factors = [torch.randn(shape, dtype=dtype) for shape in shapes]
    if by_columns:
        factors[of] = factors[of].t().contiguous().t()
    leaves = [factor.detach().requires_grad_() for factor in factors]

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.mm(x, y).abs() ** 2).sum()

    gradient = adjoint.grad(function, argnums=of)(*factors)
    (wanted,) = torch.autograd.grad(function(*leaves), leaves[of])
    torch.testing.assert_close(gradient, wanted)
    assert gradient.stride() == factors[of].stride()


@pytest.mark.parametrize("row", CONVOLUTIONS, ids=str)
def test_convolutions_are_differentiated_by_convolutions(row: Row) -> None:
    """To the third order, where torch has it, and each part of the second by itself."""
    agrees(row)
    inputs = row.inputs()
    order = 2 if "transpose" in row.name else 3
    check(lambda *given: row.function(*given).sin(), inputs, order)
    for place in range(len(inputs)):
        fixed = [v if i == place else v.detach() for i, v in enumerate(inputs)]
        check(row.function, fixed, 2)


def test_layouts_assume_nothing_about_sizes() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (torch.mm(x, torch.mm(y, x).t()) ** 2).sum()

    inputs = [torch.randn(5, 4).double().requires_grad_(), torch.randn(4, 5).double()]
    compiled = bridged(function, *inputs, dynamic=True)
    torch.autograd.grad(compiled(*inputs), inputs[0], create_graph=True)[0].sum().backward()
    small = [torch.randn(1, 1).double().requires_grad_(), torch.randn(1, 1).double()]
    (ours,) = torch.autograd.grad(compiled(*small), small[0])
    (eager,) = torch.autograd.grad(function(*small), small[0])
    torch.testing.assert_close(ours, eager)
    assert len(compiled.graph._versions.versions) == 1
