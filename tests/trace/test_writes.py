"""In-place ops of every kind, on inputs, on intermediates and through views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.parity import ROUTES, Route, Table, check, grown, leaf, plain, refused

aten = torch.ops.aten

# Each writes to a 3 x 4 tensor x, with the help of w of the same size.
WRITES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "add_": lambda x, w: x.add_(w, alpha=2),
    "conj_physical": lambda x, w: x.conj_physical_(),
    "add_scalar": lambda x, w: x.add_(1),
    "iadd": lambda x, w: x.__iadd__(w),
    "imul": lambda x, w: x.__imul__(3),
    "isub": lambda x, w: x.__isub__(w),
    "itruediv": lambda x, w: x.__itruediv__(2),
    "ipow": lambda x, w: x.__ipow__(2),
    "addcmul_": lambda x, w: x.addcmul_(w, w, value=0.5),
    "addcdiv_": lambda x, w: x.addcdiv_(w, w.exp()),
    "addmm_": lambda x, w: x.addmm_(w[:, :3], w),
    "addr_": lambda x, w: x.addr_(w[:, 0], w[0]),
    "baddbmm_": lambda x, w: x.unsqueeze(0).baddbmm_(w[None, :, :3], w[None]),
    "broadcast": lambda x, w: x.mul_(w[0]),
    "clamp_": lambda x, w: x.clamp_(-0.5, 0.5),
    "copy_": lambda x, w: x.copy_(w),
    "copy_broadcast": lambda x, w: x.copy_(w[0]),
    "copy_float": lambda x, w: x.copy_(w.float()),
    "copy_integer": lambda x, w: x.copy_((w * 5).long()),
    "copy_bool": lambda x, w: x.copy_(w > 0),
    "cumsum_": lambda x, w: x.cumsum_(1),
    "div_rounded": lambda x, w: x.div_(0.3, rounding_mode="floor"),
    "dropout_": lambda x, w: F.dropout(x, 0.5, inplace=True),
    "elu_": lambda x, w: F.elu(x, inplace=True),
    "exp_": lambda x, w: x.exp_(),
    "fill_": lambda x, w: x.fill_(2),
    "fill_tensor": lambda x, w: x.fill_(w[0, 0]),
    "fill_diagonal_": lambda x, w: x.fill_diagonal_(7.0),
    "float_power_": lambda x, w: x.float_power_(2),
    "foreach_add": lambda x, w: torch._foreach_add_([x[0], x[1]], [w[0], w[1]]),
    "foreach_mul_scalar": lambda x, w: torch._foreach_mul_([x, w.clone()], 2.0),
    "foreach_exp": lambda x, w: torch._foreach_exp_([x]),
    "foreach_zero": lambda x, w: torch._foreach_zero_([x[:, 0], x[:, 2]]),
    "foreach_copy": lambda x, w: torch._foreach_copy_([x[0], x[2]], [w[1], w[0]]),
    "foreach_addcdiv": lambda x, w: torch._foreach_addcdiv_([x], [w], [w.exp()], 0.5),
    "foreach_lerp": lambda x, w: torch._foreach_lerp_([x], [w], 0.25),
    "gt_": lambda x, w: x.gt_(0.5),
    "ge_tensor": lambda x, w: x.ge_(w),
    "ne_broadcast": lambda x, w: x.ne_(w[0].float()),
    "hardtanh_": lambda x, w: F.hardtanh(x, inplace=True),
    "index_add_": lambda x, w: x.index_add_(0, torch.tensor([0, 0, 2]), w),
    "index_copy_": lambda x, w: x.index_copy_(1, torch.tensor([2, 0]), w[:, :2]),
    "index_fill_": lambda x, w: x.index_fill_(1, torch.tensor([1]), 3.0),
    "index_put_": lambda x, w: x.index_put_((torch.tensor([0, 2]),), w[:2]),
    "index_put_accumulate": lambda x, w: x.index_put_(
        (torch.tensor([1, 1]),), w[:2], accumulate=True
    ),
    "leaky_relu_": lambda x, w: F.leaky_relu(x, 0.1, inplace=True),
    "lerp_": lambda x, w: x.lerp_(w, 0.3),
    "logical_and_": lambda x, w: x.logical_and_(w),
    "logical_not_": lambda x, w: x.logical_not_(),
    "masked_fill_": lambda x, w: x.masked_fill_(w > 0, 1.5),
    "masked_fill_tensor": lambda x, w: x.masked_fill_(w > 0, w[0, 0]),
    "masked_scatter_": lambda x, w: x.masked_scatter_(x > 0, w),
    "mul_complex_free": lambda x, w: x.mul_(2j.real),
    "nan_to_num_": lambda x, w: x.div_(0.0).nan_to_num_(),
    "neg_": lambda x, w: x.neg_(),
    "put_": lambda x, w: x.put_(torch.tensor([0, 5]), w[0, :2]),
    "pow_": lambda x, w: x.pow_(2),
    "relu_": lambda x, w: x.relu_(),
    "renorm_": lambda x, w: x.renorm_(2, 0, 0.5),
    "scatter_": lambda x, w: x.scatter_(1, torch.tensor([[0, 1], [2, 3], [1, 0]]), w[:, :2]),
    "scatter_value": lambda x, w: x.scatter_(1, torch.tensor([[0], [2], [1]]), 4.0),
    "scatter_add_": lambda x, w: x.scatter_add_(
        1, torch.tensor([[0, 0], [2, 3], [1, 1]]), w[:, :2]
    ),
    "scatter_reduce_": lambda x, w: x.scatter_reduce_(
        1, torch.tensor([[0, 0], [2, 3], [1, 1]]), w[:, :2], "sum"
    ),
    "setitem": lambda x, w: x.__setitem__(1, w[0]),
    "setitem_scalar": lambda x, w: x.__setitem__((1, 2), 5.0),
    "setitem_slice": lambda x, w: x.__setitem__((slice(None), slice(1, 3)), w[:, :2]),
    "setitem_mask": lambda x, w: x.__setitem__(w > 0, 0.0),
    "setitem_mask_from": lambda x, w: x.__setitem__(w > 0, w[0, 0]),
    "setitem_index": lambda x, w: x.__setitem__((torch.tensor([0, 2]), slice(None)), w[:2]),
    "setitem_ellipsis": lambda x, w: x.__setitem__((..., 0), 1.0),
    "setitem_augmented": lambda x, w: x[1].__iadd__(w[1]),
    "sgn_": lambda x, w: x.sgn_(),
    "sigmoid_": lambda x, w: x.sigmoid_(),
    "silu_": lambda x, w: F.silu(x, inplace=True),
    "sin_": lambda x, w: x.sin_(),
    "sub_": lambda x, w: x.sub_(w),
    "threshold_": lambda x, w: F.threshold(x, 0.1, 2.0, inplace=True),
    "tril_": lambda x, w: x.tril_(),
    "where_out": lambda x, w: x.copy_(torch.where(w > 0, x, w)),
    "xlogy_": lambda x, w: x.xlogy_(w.exp()),
    "zero_": lambda x, w: x.zero_(),
    # Random.
    "bernoulli_": lambda x, w: x.bernoulli_(0.3),
    "cauchy_": lambda x, w: x.cauchy_(),
    "exponential_": lambda x, w: x.exponential_(),
    "geometric_": lambda x, w: x.geometric_(0.5),
    "log_normal_": lambda x, w: x.log_normal_(),
    "normal_": lambda x, w: x.normal_(1, 2),
    "random_": lambda x, w: x.random_(0, 10),
    "uniform_": lambda x, w: x.uniform_(-1, 1),
    "rrelu_": lambda x, w: F.rrelu(x, training=True, inplace=True),
    "init_kaiming": lambda x, w: torch.nn.init.kaiming_normal_(x.detach()),
}

writes = pytest.mark.parametrize("write", [pytest.param(f, id=n) for n, f in WRITES.items()])


@writes
def test_an_intermediate(write: Callable[..., Any]) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        before = y.t()
        write(y, w)
        return y, before * 1

    check(program, lambda: (leaf(3, 4), leaf(3, 4)))


@writes
def test_an_input(write: Callable[..., Any]) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        seen = x[1]
        write(x, w)
        return seen * 2 + x.sum()

    check(program, lambda: (grown(3, 4), plain(3, 4)))


@writes
def test_a_leaf_without_grad(write: Callable[..., Any]) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        with torch.no_grad():
            write(x, w)
        return x * 2

    check(program, lambda: (leaf(3, 4), plain(3, 4)))


@writes
def test_through_a_view(write: Callable[..., Any]) -> None:
    def program(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 2
        write(y[1:4, ::2], w)
        write(x.view(5, 8)[1:4].t()[::2].t(), w)
        return y, x.sum()

    check(program, lambda: (plain(5, 8), plain(3, 4)))


@pytest.mark.parametrize(
    "write", [pytest.param(f, id=n) for n, f in WRITES.items() if n != "random_"]
)
def test_through_dynamo(write: Callable[..., Any]) -> None:
    def program(x: Tensor, w: Tensor) -> Tensor:
        write(x, w)
        return x.sum()

    check(program, lambda: (plain(3, 4), plain(3, 4)), Route.DYNAMO)


# `out=`, integers, and other things of their own.
table = Table()


@table(lambda: (plain(3), plain(3), plain(3)))
def out(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.add(x, y, out=z)


@table(lambda: (plain(3), plain(3)))
def out_of_an_intermediate(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.empty(3, dtype=torch.float64)
    seen = z[1:]
    torch.mul(x, y, out=z)
    return z, seen.clone()


@table(lambda: (plain(3, 4), plain(3, 4)), dynamo=False)
def out_through_a_view(x: Tensor, z: Tensor) -> Tensor:
    torch.sum(x, 1, out=z[:, 1])
    return z * 2


@table(lambda: (plain(3, 4), plain(3), torch.empty(3, dtype=torch.long)))
def two_outs(x: Tensor, values: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
    torch.max(x, 1, out=(values, indices))
    return values + 1, indices


@table(lambda: (plain(3, 4), torch.empty(0, dtype=torch.float64)), dynamo=False)
def out_of_no_size(x: Tensor, z: Tensor) -> Tensor:
    torch.mul(x, 2, out=z)
    return z + 1


@table(lambda: (plain(3), torch.zeros(3, dtype=torch.float32)))
def out_of_another_dtype(x: Tensor, z: Tensor) -> Tensor:
    torch.add(x, 1, out=z)
    return z


@table(lambda: (torch.arange(4), plain(4)), raises=RuntimeError)
def promotion_that_cannot_be_stored(x: Tensor, y: Tensor) -> Tensor:
    return x.add_(y)


@table(lambda: (plain(4, dtype=torch.float32), plain(4)))
def promotion(x: Tensor, y: Tensor) -> Tensor:
    return x.mul_(y)


@table(lambda: (torch.arange(4), torch.arange(4)))
def integers(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1).mul_(y).bitwise_and_(7)
    return x // 2


@table(lambda: (torch.tensor([True, False]), torch.tensor([False, False])))
def booleans(x: Tensor, y: Tensor) -> Tensor:
    x.logical_not_()
    x |= y
    return x ^ y


@table(lambda: plain(4))
def comparisons(x: Tensor) -> Tensor:
    return x.gt_(0)


@table(lambda: (plain(4),))
def sorting(x: Tensor) -> Tensor:
    x.copy_(x.sort().values)
    return x


@table(lambda: plain(3, dtype=torch.complex128))
def complex_numbers(x: Tensor) -> Tensor:
    x.mul_(1j).add_(2)
    x.conj_physical_()
    x.real.add_(1)
    return x.imag.mul_(2)


@table(lambda: (plain(3), plain(3)))
def swapped(x: Tensor, y: Tensor) -> None:
    old = x.clone()
    x.copy_(y)
    y.copy_(old)


@table(lambda: (plain(3), plain(3)))
def returns_nothing(x: Tensor, y: Tensor) -> None:
    x.add_(y)


@table(lambda: plain(3))
def written_often(x: Tensor) -> Tensor:
    for step in range(5):
        x[step % 3].add_(step)
        x.mul_(1.5)
    return x[0]


@table(lambda: (plain(3), plain(3)))
def several_of_one_memory(x: Tensor, y: Tensor) -> Tensor:
    torch._foreach_add_([x, x], 1.0)
    torch._foreach_mul_([x[:2], x[1:]], 3.0)
    torch._foreach_add_([x, y], [y, x])
    return x


@table(lambda: (leaf(3, 2, 5), plain(2), plain(2).exp()), order=2)
def statistics_of_a_batch(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    y = F.batch_norm(x, mean, var, training=True) * mean[:, None]
    return F.batch_norm(y, mean, var, training=True) * F.batch_norm(x, mean, var)


@table(lambda: (leaf(3, 2, 5), plain(2), plain(2).exp()), order=2)
def statistics_of_instances(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    return F.instance_norm(x, mean, var)


@table(lambda: (leaf(3, 4), plain(2), plain(2).exp()))
def statistics_that_are_no_input(x: Tensor, mean: Tensor, var: Tensor) -> tuple[Tensor, ...]:
    means, vars = mean.repeat(2), var.repeat(2)
    return F.batch_norm(x, means, vars, training=True), means, vars


@table(lambda: (grown(3), grown(3)), order=2)
def second_order(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(y)
    x[1:].sin_()
    return (x * x * y).sum()


@table(lambda: (leaf(3), leaf(3)), order=2)
def second_order_through_views(x: Tensor, y: Tensor) -> Tensor:
    z = torch.zeros(2, 3, dtype=torch.float64)
    z[0] = x * y
    z[1] = z[0].exp() * x
    return (z * z).sum()


@table(lambda: leaf(3), raises=RuntimeError)
def a_leaf_that_requires_grad(x: Tensor) -> Tensor:
    return x.add_(1)


@table(lambda: leaf(3), raises=RuntimeError)
def a_view_of_a_leaf(x: Tensor) -> Tensor:
    return x[1:].add_(1)


@table(lambda: plain(3), raises=RuntimeError)
def fails_after_a_write(x: Tensor) -> Tensor:
    x.add_(1)
    return x.view(7)


@table(lambda: (plain(3), torch.tensor([5])), raises=IndexError)
def fails_when_it_runs(x: Tensor, index: Tensor) -> Tensor:
    x.add_(1)
    return x[index]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_writes(row: Any, route: Route) -> None:
    row.check(route)


def optimizer_step(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor) -> None:
    """Adam, as torch.optim writes it."""
    with torch.no_grad():
        step += 1
        m.lerp_(g, 0.1)
        v.mul_(0.99).addcmul_(g, g, value=0.01)
        p.addcdiv_(m / (1 - 0.9**step), (v / (1 - 0.99**step)).sqrt_().add_(1e-8), value=-0.1)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
def test_an_optimizer_step(route: Route) -> None:
    def inputs() -> tuple[Tensor, ...]:
        return leaf(4), plain(4), plain(4), plain(4).abs(), torch.zeros((), dtype=torch.float64)

    check(optimizer_step, inputs, route)


def test_writes_to_elements_that_overlap_are_refused_with_a_remedy() -> None:
    def overlapping(x: Tensor) -> Tensor:
        rows = x[:4].sin().as_strided((3, 2), (1, 1))
        rows.add_(1)
        return rows

    error = refused(overlapping, lambda: torch.ones(6))
    assert error.remedy == "write to a clone() of it"
    assert "rows.add_(1)" in str(error)


@torch.library.custom_op("adjoint_writes::both", mutates_args=("one", "other"))
def both(one: Tensor, other: Tensor) -> None:
    one.add_(1)
    other.add_(1)


def test_an_op_that_writes_twice_to_the_same_memory_is_refused() -> None:
    def program(x: Tensor) -> Tensor:
        y = x * 2
        both(y[:4], y[2:])
        return y

    error = refused(program, lambda: plain(6))
    assert error.why == "two of the tensors it writes to share memory"
    assert "both(y[:4], y[2:])" in str(error)
