from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

from adjoint.graph.operations import (
    Backwards,
    apply_function,
    build_subclass,
    in_order,
    on_copies,
    take_attribute,
    with_data,
)

aten = torch.ops.aten


def test_with_data_has_the_value_of_one_and_the_derivative_of_the_other() -> None:
    history, data = (torch.randn(3, requires_grad=True) for _ in range(2))
    result = with_data(history, data)
    assert torch.equal(result, data)
    assert result.data_ptr() != data.data_ptr()
    found = torch.autograd.grad(result.sum(), [history, data], allow_unused=True)
    assert found[0] is not None
    assert found[1] is None


@pytest.mark.parametrize(
    ("op", "mutated", "args", "kwargs", "results"),
    [
        (aten.add_.Tensor, ("self",), (1.0, 2.0), {}, [3.0]),
        (aten.add.out, ("out",), (1.0, 2.0), {"out": 0.0}, [3.0]),
        (aten._foreach_add_.Scalar, ("self",), ([1.0, 2.0], 5), {}, [[6.0, 7.0]]),
    ],
)
def test_a_mutating_op_on_copies(
    op: Any, mutated: tuple[str, ...], args: Any, kwargs: Any, results: list[Any]
) -> None:
    def tensors(value: Any) -> Any:
        if isinstance(value, list):
            return [tensors(each) for each in value]
        return torch.tensor([value]) if isinstance(value, float) else value

    given, named = [tensors(each) for each in args], {k: tensors(v) for k, v in kwargs.items()}
    before = [tensors(each) for each in args]
    found = on_copies(op, mutated, tuple(given), named)
    torch.testing.assert_close(list(found), [tensors(each) for each in results])
    torch.testing.assert_close(
        [each for each in given if isinstance(each, (Tensor, list))],
        [each for each in before if isinstance(each, (Tensor, list))],
    )


def test_effects_hand_on_a_token() -> None:
    token = torch.empty(0)
    following, result = in_order(token, aten.sin.default, torch.ones(3))
    assert following is token
    assert torch.equal(result, torch.ones(3).sin())


def test_subclasses_are_built_and_taken_apart() -> None:
    a, b = torch.ones(3), torch.zeros(3)
    built = build_subclass(TwoTensor, ("a", "b"), None, (3,), (1,), a, b)
    assert isinstance(built, TwoTensor)
    assert take_attribute(built, "a") is a
    assert take_attribute(built, "b") is b


def halves(scale: int) -> tuple[torch.fx.GraphModule, Backwards]:
    """x -> (x * x, floor(x)), which saves x and a number; the derivative is off by `scale`."""
    forward = torch.fx.Graph()
    x = forward.placeholder("x")
    squared, fixed = (
        forward.call_function(torch.mul, (x, x)),
        forward.call_function(torch.floor, (x,)),
    )
    results: Any = ([squared, fixed], [x, scale])
    forward.output(results)
    backward = torch.fx.Graph()
    cotangent, _, saved, number = map(backward.placeholder, ("c", "unused", "saved", "number"))
    product = backward.call_function(torch.mul, (cotangent, saved))
    backward.output([backward.call_function(torch.mul, (product, number))])
    return torch.fx.GraphModule({}, forward), ((None, torch.fx.GraphModule({}, backward)),)


def test_a_custom_function_keeps_its_derivative() -> None:
    x = torch.tensor([1.5, 2.5], requires_grad=True)
    squared, fixed = apply_function(*halves(10), (1,), False, x)
    assert torch.equal(squared, x * x)
    assert not fixed.requires_grad
    (gradient,) = torch.autograd.grad(squared.sum(), x, create_graph=True)
    assert torch.equal(gradient, 10 * x)
    assert torch.equal(torch.autograd.grad(gradient.sum(), x)[0], torch.full((2,), 10.0))


def test_a_custom_function_that_is_differentiable_once() -> None:
    x = torch.ones(2, requires_grad=True)
    squared, _ = apply_function(*halves(2), (1,), True, x)
    cotangent = torch.ones(2, requires_grad=True)
    (gradient,) = torch.autograd.grad(squared, x, cotangent, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_a_custom_function_without_a_backward_for_what_is_given() -> None:
    forward, ((_, backward),) = halves(2)
    x = torch.ones(2, requires_grad=True)
    squared, _ = apply_function(forward, (((1,), backward),), (1,), False, x)
    with pytest.raises(RuntimeError, match="was captured for cotangents of its results"):
        squared.sum().backward()


def test_a_custom_function_inside_its_own_backward_is_captured_for_some_orders() -> None:
    forward, _ = halves(2)
    x = torch.ones(2, requires_grad=True)
    squared, _ = apply_function(forward, (), (1,), False, x)
    with pytest.raises(RuntimeError, match="was captured for fewer derivatives; call it outside"):
        squared.sum().backward()
