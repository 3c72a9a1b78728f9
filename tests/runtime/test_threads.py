"""Threads that compile, differentiate and run the same programs, and others, at once."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import adjoint
from adjoint.torch_private.modes import TorchDispatchMode
from tests.parity import leaf

grad = torch.autograd.grad


def at_once(work: Callable[[int], None], count: int = 4) -> None:
    """Run `work(place)` in `count` threads, and raise what one of them raises."""
    start = threading.Barrier(count)

    def run(place: int) -> None:
        start.wait()
        work(place)

    with ThreadPoolExecutor(count) as threads:
        list(threads.map(run, range(count)))


def test_second_derivatives_of_one_compiled_module_for_other_sizes() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module: Any = nn.Sequential(nn.Linear(2, 6), nn.Tanh(), nn.Linear(6, 1)).double()
    weight = module[0].weight
    compiled = torch.compile(module, backend="adjoint")

    def second(run: Any, x: Tensor) -> Any:
        (force,) = grad(run(x).sum(), x, create_graph=True)
        return grad(force.square().sum(), weight)

    inputs = [leaf(3 + place, 2) for place in range(4)]
    wanted = [second(module, x) for x in inputs]

    def work(place: int) -> None:
        for _ in range(3):
            torch.testing.assert_close(second(compiled, inputs[place]), wanted[place])

    at_once(work)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *cotangents: Any) -> Any:
        return cotangents[0] * 2


def test_captures_beside_each_other_and_beside_eager_code() -> None:
    def work(place: int) -> None:
        x = torch.linspace(0, 1, 2 + place, dtype=torch.float64)
        applied: Any = Doubled
        for power in range(2, 5):
            if place % 2:
                found = adjoint.hessian(lambda x, power=power: (x**power).sum())(x)
                wanted = torch.diag(power * (power - 1) * x ** (power - 2))
                torch.testing.assert_close(found, wanted)
            for _ in range(50):
                z = x.clone().requires_grad_()
                torch.testing.assert_close(grad(applied.apply(z).sum(), z)[0], x * 0 + 2)
                assert not torch.compiler.is_dynamo_compiling()

    at_once(work)


class Passing(TorchDispatchMode):
    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return op(*args, **(kwargs or {}))


def save_sines(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    saved = op is torch.ops.aten.sin.default
    return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


def test_eager_code_under_modes_of_its_own_while_another_thread_captures() -> None:
    """While a program is captured, parts of torch are changed; not for others than it."""
    # By pipes, and without pytest's assertions: a function that changes an object which it holds is
    # left to torch.func.
    (begun, begin), (done, finish) = os.pipe(), os.pipe()

    def slow(x: Tensor) -> Tensor:
        applied: Any = Doubled
        os.write(begin, b".")
        os.read(done, 1)
        result: Tensor = applied.apply(x).sin().sum()
        return result

    found: list[Tensor] = []
    x = torch.linspace(0, 1, 3, dtype=torch.float64)
    thread = threading.Thread(target=lambda: found.append(adjoint.grad(slow)(x)))
    thread.start()
    try:
        assert os.read(begun, 1)
        z = x.clone().requires_grad_()
        applied: Any = Doubled
        with Passing():  # type: ignore[no-untyped-call]
            assert not torch.compiler.is_dynamo_compiling()
            (through_function,) = grad(applied.apply(z).sum(), z)
            contexts = functools.partial(create_selective_checkpoint_contexts, save_sines)
            kept = checkpoint(lambda z: z.sin().exp(), z, use_reentrant=False, context_fn=contexts)
            (through_checkpoint,) = grad(kept.sum(), z)
    finally:
        os.write(finish, b".")
        thread.join()
        for end in (begun, begin, done, finish):
            os.close(end)
    torch.testing.assert_close(through_function, torch.full_like(x, 2))
    torch.testing.assert_close(through_checkpoint, x.cos() * x.sin().exp())
    torch.testing.assert_close(found, [2 * (2 * x).cos()])


def test_other_functions_compiled_at_once() -> None:
    torch._dynamo.reset()

    def made(place: int) -> Any:
        def function(x: Tensor) -> Tensor:
            y = torch.cond(x.sum() > 0, lambda x: x.sin() * place, lambda x: x.cos(), (x,))
            result: Tensor = checkpoint(lambda y: (y * y).exp() + place, y, use_reentrant=False)
            return result

        return function

    inputs = [leaf(2 + place, 3) for place in range(4)]
    functions = [made(place + 1) for place in range(4)]
    wanted = [grad(f(x).sum(), x) for f, x in zip(functions, inputs, strict=True)]

    def work(place: int) -> None:
        compiled: Any = torch.compile(functions[place], backend="adjoint", dynamic=False)
        x = inputs[place]
        torch.testing.assert_close(grad(compiled(x).sum(), x), wanted[place])
        found = adjoint.grad(lambda x: functions[place](x).sum())(x)
        torch.testing.assert_close(found, wanted[place][0])

    at_once(work)
