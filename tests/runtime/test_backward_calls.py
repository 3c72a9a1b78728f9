"""What users of autograd do around a compiled graph: hooks, threads, writes to saved tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.differentiation import bridged
from tests.parity import leaf, plain
from tests.runtime.test_bridge import network, nth

grad = torch.autograd.grad


# Calls of backward, and hooks ---------------------------------------------------------------------


def test_repeated_backward_accumulates() -> None:
    x, y = leaf(3), leaf(3)
    compiled = bridged(lambda x: x.sin(), x)
    for _ in range(3):
        compiled(x).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach().cos())
    out = compiled(y).sum()
    out.backward(retain_graph=True)
    out.backward()
    torch.testing.assert_close(y.grad, 2 * y.detach().cos())


def test_a_second_backward_needs_retain_graph() -> None:
    x = leaf(3)
    out = bridged(lambda x: x.sin(), x)(x).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


def test_inputs_chosen_in_backward() -> None:
    x, y = leaf(3), leaf(3)
    (bridged(lambda x, y: x * y, x, y)(x, y)).sum().backward(inputs=[y])
    assert x.grad is None
    torch.testing.assert_close(y.grad, x.detach())


def test_unused_inputs_are_errors_as_in_eager() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), y.cos()

    x, y = leaf(3), leaf(3)
    for run in (function, bridged(function, x, y)):
        with pytest.raises(RuntimeError, match="not have been used"):
            grad(run(x, y)[0].sum(), [x, y])
        one, other = grad(run(x, y)[0].sum(), [x, y], allow_unused=True)
        torch.testing.assert_close(one, x.detach().cos())
        assert other is None


@pytest.mark.parametrize("function", [torch.floor, torch.sign, lambda x: x.round() + x.ceil()])
def test_steps_have_a_derivative_of_zero(function: Callable[[Tensor], Tensor]) -> None:
    x = leaf(3)
    compiled = bridged(function, x)
    assert compiled(x).requires_grad
    torch.testing.assert_close(grad(compiled(x).sum(), x)[0], torch.zeros_like(x))


def test_hooks() -> None:
    def run(compile_it: bool) -> list[Any]:
        module, x = network(), torch.ones(2, 3, dtype=torch.float64, requires_grad=True)
        seen: list[Any] = []
        function: Any = bridged(module, x) if compile_it else module
        x.register_hook(lambda g: seen.append(("input", g)))
        module[0].weight.register_hook(lambda g: g * 2)
        module[2].bias.register_post_accumulate_grad_hook(
            lambda p: seen.append(("parameter", p.grad.clone()))
        )
        out = function(x)
        out.register_hook(lambda g: g * 3)
        out.retain_grad()
        out.sum().backward()
        seen += [("output", out.grad), *((n, p.grad) for n, p in module.named_parameters())]
        return sorted(seen, key=lambda pair: str(pair[0]))

    for mine, theirs in zip(run(True), run(False), strict=True):
        assert mine[0] == theirs[0]
        torch.testing.assert_close(mine[1], theirs[1])


def test_full_backward_hooks() -> None:
    class Scaled(nn.Module):
        def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
            super().__init__()
            self.function = function

        def forward(self, x: Tensor) -> Tensor:
            return self.function(x)

    x = leaf(3)
    seen = []
    for function in (torch.sin, bridged(torch.sin, x)):
        module = Scaled(function)
        module.register_full_backward_pre_hook(lambda m, g: (g[0] * 5,))  # type: ignore[index]
        module.register_full_backward_hook(lambda m, g, h: (g[0] * 7 + h[0],))  # type: ignore[index]
        seen.append(grad(module(x).sum(), x)[0])
    torch.testing.assert_close(*seen)


def test_saved_tensor_hooks_see_what_is_saved() -> None:
    x = leaf(3)
    compiled, packed = bridged(lambda x: x.exp() * x, x), []

    def pack(tensor: Tensor) -> Any:
        assert type(tensor) is Tensor, "compiling must not be seen by the user's hooks"
        packed.append(tensor)
        return (tensor.detach().clone(),)

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda p: p[0]):
        out = compiled(x)
    (mine,) = grad(out.sum(), x)
    assert packed
    torch.testing.assert_close(mine, grad((x.exp() * x).sum(), x)[0])


def test_a_custom_function_around_and_a_checkpoint_around() -> None:
    x, module = leaf(2, 3), network()
    compiled = bridged(module, x)
    out = torch.utils.checkpoint.checkpoint(compiled, x, use_reentrant=False)
    torch.testing.assert_close(grad(out.sum(), x), grad(module(x).sum(), x))


def test_anomaly_mode() -> None:
    x = leaf(3)
    compiled = bridged(lambda x: x.sqrt(), x)
    with torch.autograd.detect_anomaly():
        (mine,) = grad(compiled(x.square() + 1).sum(), x, create_graph=True)
        (second,) = grad(mine.sum(), x)
        y = torch.zeros(3, dtype=torch.float64, requires_grad=True)
        with pytest.raises(RuntimeError, match="returned nan values"):
            (compiled(y) * 0).sum().backward()
    (theirs,) = grad((x.square() + 1).sqrt().sum(), x, create_graph=True)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(second, grad(theirs.sum(), x)[0])


def test_backward_from_several_threads() -> None:
    inputs = [leaf(4) for _ in range(4)]
    compiled = bridged(lambda x: (x.sin() * x).exp(), inputs[0])
    expected = [nth(lambda x: (x.sin() * x).exp(), x, 2) for x in inputs]
    found: dict[int, Tensor] = {}

    def work(place: int) -> None:
        found[place] = nth(compiled, inputs[place], 2)

    threads = [threading.Thread(target=work, args=(place,)) for place in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, wanted in enumerate(expected):
        torch.testing.assert_close(found[place], wanted)


def test_autocast_around_backward_changes_nothing() -> None:
    x = leaf(3, 3, dtype=torch.float32)
    compiled = bridged(lambda x: (x @ x).tanh(), x)
    out = compiled(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        (mine,) = grad(out.sum(), x, create_graph=True)
        (second,) = grad(mine.sum(), x)
    assert mine.dtype == second.dtype == torch.float32
    (theirs,) = grad((x @ x).tanh().sum(), x, create_graph=True)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(second, grad(theirs.sum(), x)[0])


# Versions -----------------------------------------------------------------------------------------


def test_a_saved_input_may_not_be_modified() -> None:
    x, y = leaf(3), plain(3)
    for run in (torch.mul, bridged(torch.mul, x, y)):
        out = run(x, y)
        y += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_saved_result_may_not_be_modified() -> None:
    x = leaf(3)
    for run in (torch.exp, bridged(torch.exp, x)):
        out = run(x)
        out += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_what_is_not_saved_may_be_modified() -> None:
    x, y = leaf(3), plain(3)
    for run in (torch.add, bridged(torch.add, x, y)):
        out = run(x, y)
        y += 1
        out += 1
        torch.testing.assert_close(grad(out.sum(), x)[0], torch.ones_like(x))
