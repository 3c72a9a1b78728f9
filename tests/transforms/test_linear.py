from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.errors import CaptureError
from adjoint.transforms.compiled import linearized
from tests.parity import leaf, plain

aten = torch.ops.aten


def two(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sin() * y, y.exp(), x.argmax()


def targets(function: Any, *args: Any) -> list[Any]:
    return [node.target for node in adjoint.capture(function, *args).graph_module.graph.nodes]


def test_both_directions_are_transposes() -> None:
    x, y, dx, dy, one, other = (plain(3) for _ in range(6))

    def program(x: Tensor, y: Tensor) -> Any:
        point = linearized(two, [x, y])
        return point.push_forward([dx, dy]), point.pull_back([one, other, None])

    pushed, pulled = adjoint.run(adjoint.capture(program, x, y), x, y)
    assert not pushed[2].any()
    forwards = (pushed[0] * one).sum() + (pushed[1] * other).sum()
    backwards = (pulled[0] * dx).sum() + (pulled[1] * dy).sum()
    torch.testing.assert_close(forwards, backwards)


def test_the_value_is_computed_once() -> None:
    def program(x: Tensor) -> Any:
        point = linearized(lambda x: x.exp().sin(), [x])
        return point.value, point.pull_back([x]), point.pull_back([x * 2])

    assert targets(program, plain(3)).count(aten.exp.default) == 1


def test_no_cotangents_no_nodes() -> None:
    def program(x: Tensor) -> Any:
        point = linearized(lambda x: x.sin(), [x])
        return point.pull_back([None])

    found = targets(program, plain(3))
    assert aten.cos.default not in found
    (gradient,) = adjoint.run(adjoint.capture(program, plain(3)), plain(3))
    assert not gradient.any()


def test_what_depends_on_nothing() -> None:
    def program(x: Tensor) -> Any:
        point = linearized(lambda x: torch.ones(2), [x])
        return point.push_forward([x]), point.pull_back([torch.ones(2)])

    pushed, pulled = adjoint.run(adjoint.capture(program, plain(3)), plain(3))
    assert not pushed[0].any()
    assert not pulled[0].any()


def test_a_write_to_what_requires_grad_outside() -> None:
    held = leaf(3) * 1

    def program(x: Tensor) -> Tensor:
        held.mul_(2)
        return (x * held).sum()

    with pytest.raises(CaptureError, match="in-place write inside a differentiated function"):
        adjoint.grad(program)(plain(3))


def test_a_write_to_a_buffer_outside_happens() -> None:
    counter = torch.zeros(())

    def program(x: Tensor) -> Tensor:
        counter.add_(1)
        return (x * counter).sum()

    x = plain(3)
    for calls in (1, 2):
        torch.testing.assert_close(adjoint.grad(program)(x), torch.full_like(x, calls))
        assert counter == calls


@torch.library.custom_op("adjoint_tests::cube", mutates_args=())
def cube(x: Tensor) -> Tensor:
    return x**3


@cube.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


cube.register_autograd(
    lambda ctx, g: 3 * g * ctx.saved_tensors[0] ** 2,
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def test_custom_ops_in_forward_mode() -> None:
    """Torch runs them with forward mode switched off, which is not the program's doing."""
    x, tangent = plain(3).double(), plain(3).double()
    _, found = adjoint.jvp(lambda x: cube(x), (x,), (tangent,))
    torch.testing.assert_close(found, 3 * x**2 * tangent)
    _, (found,) = adjoint.hvp(lambda x: cube(x).sum(), (x,), (tangent,))
    torch.testing.assert_close(found, 6 * x * tangent)


def test_custom_ops_where_forward_mode_is_off() -> None:
    x = plain(3).double()

    def program(x: Tensor) -> Any:
        with torch.autograd.forward_ad._set_fwd_grad_enabled(False):
            y = cube(x)
        return x + y

    torch.testing.assert_close(adjoint.jvp(program, (x,), (x,))[1], x)


@pytest.mark.parametrize("name", ["logcumsumexp", "cosine_similarity"])
def test_forward_mode_of_derivatives_by_ops_of_our_own(name: str) -> None:
    x, y, tangent = (plain(2, 3).double() for _ in range(3))

    def loss(x: Tensor) -> Tensor:
        if name == "logcumsumexp":
            return (x.logcumsumexp(-1) * y).sum()
        return torch.nn.functional.cosine_similarity(x, y).sum()

    expected = torch.func.jvp(torch.func.grad(loss), (x,), (tangent,))[1]
    _, (found,) = adjoint.hvp(loss, (x,), (tangent,))
    torch.testing.assert_close(found, expected)
