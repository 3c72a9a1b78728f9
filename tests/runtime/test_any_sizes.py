"""Sizes are arguments: none, one, equal ones, many, other ones in each call, from several threads.

One compiled function is called with all of them, and compared with eager in float64 at orders 0
to 2.  What a set of sizes leaves behind is nothing.
"""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import adjoint

WIDTH = 6


def attention(x: Tensor, y: Tensor) -> Tensor:
    return F.softmax(x @ y.t() / WIDTH, -1) @ y + x


def messages(x: Tensor, y: Tensor) -> Tensor:
    """Edges between the rows of both, their number the product of sizes."""
    difference = (x[:, None] - y[None]).flatten(0, 1)
    weight = torch.exp(-(difference.square().sum(-1)))
    to = torch.arange(x.shape[0]).repeat_interleave(y.shape[0])
    return torch.zeros_like(x).index_add(0, to, difference * weight[:, None]).tanh()


def network(x: Tensor, y: Tensor) -> Tensor:
    """Products and sums over both, and a view that is returned."""
    z = torch.tanh(x @ (y.t() @ y)) + y.sum(0)
    return (torch.cat([z, y]).sin() @ y.t()).t()


def layers(x: Tensor, y: Tensor) -> Tensor:
    z = F.layer_norm(torch.cat([x, y, x]), (WIDTH,))
    return F.gelu(z[x.shape[0] // 2 :]).cumsum(0) * z.sum()


FUNCTIONS = [attention, messages, network, layers]
SIZES = [0, 1, 2, 3, 5, 8, 13, 40]


def results(function: Callable[..., Tensor], x: Tensor, y: Tensor, order: int) -> list[Tensor]:
    """The value and, of a sum over it, gradients and gradients of these."""
    leaves = [x.detach().requires_grad_(order > 0), y.detach().requires_grad_(order > 0)]
    value = function(*leaves)
    found = [value.detach()]
    loss = value.sin().sum()
    for remaining in range(order, 0, -1):
        grads = torch.autograd.grad(loss, leaves, create_graph=remaining > 1)
        found += [each.detach() for each in grads]
        loss = sum((each.square().sum() for each in grads), value.sum())
    return found


def drawn(generator: random.Random) -> tuple[Tensor, Tensor]:
    m, n = generator.choice(SIZES), generator.choice(SIZES)
    if generator.random() < 0.25:
        n = m
    seed = torch.Generator().manual_seed(generator.randrange(10**6))
    return (
        torch.randn(m, WIDTH, dtype=torch.float64, generator=seed),
        torch.randn(n, WIDTH, dtype=torch.float64, generator=seed),
    )


def check_calls(
    function: Callable[..., Tensor], compiled: Callable[..., Tensor], seed: int, calls: int
) -> None:
    generator = random.Random(seed)
    for _ in range(calls):
        x, y = drawn(generator)
        order = generator.randrange(3)
        ours = results(compiled, x, y, order)
        for one, other in zip(ours, results(function, x, y, order), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(
    "calls", [pytest.param(15, id="some"), pytest.param(150, id="many", marks=pytest.mark.slow)]
)
def test_sizes_that_change_in_each_call(function: Callable[..., Tensor], calls: int) -> None:
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="adjoint", dynamic=True)
    check_calls(function, compiled, 1, calls)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_sizes_through_a_transform(function: Callable[..., Tensor]) -> None:
    ours = adjoint.grad(lambda x, y: function(x, y).sin().sum(), argnums=(0, 1))
    eager = torch.func.grad(lambda x, y: function(x, y).sin().sum(), argnums=(0, 1))
    generator = random.Random(2)
    for _ in range(10):
        x, y = drawn(generator)
        torch.testing.assert_close(ours(x, y), eager(x, y), rtol=1e-8, atol=1e-8)


def test_sizes_from_several_threads() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(attention, backend="adjoint", dynamic=True)
    check_calls(attention, compiled, 3, 6)

    def work(seed: int) -> None:
        torch.set_num_threads(1)
        check_calls(attention, compiled, seed, 20)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


NORMALIZED_SIZES = [4, 5, 0, 3, 0, 6]


@pytest.mark.parametrize("training", [True, False])
def test_nothing_to_normalize(training: bool) -> None:
    """An empty batch leaves the running statistics alone, and its backward kernel is not called."""
    torch._dynamo.reset()
    made = [torch.nn.BatchNorm1d(WIDTH, dtype=torch.float64).train(training) for _ in range(2)]
    compiled: Callable[[Tensor], Tensor] = torch.compile(made[0], backend="adjoint", dynamic=True)
    for size in NORMALIZED_SIZES:
        inputs = [torch.linspace(0, 1, size * WIDTH, dtype=torch.float64).reshape(size, WIDTH)] * 2
        inputs = [each.clone().requires_grad_() for each in inputs]
        compiled(inputs[0]).square().sum().backward()
        made[1](inputs[1]).square().sum().backward()
        torch.testing.assert_close(inputs[0].grad, inputs[1].grad, rtol=1e-8, atol=1e-8)
        for one, other in zip(*(each.state_dict().values() for each in made), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def test_nothing_to_normalize_in_a_transform() -> None:
    scale = torch.arange(WIDTH).double()

    def loss(x: Tensor, weight: Tensor) -> Tensor:
        return F.batch_norm(x, scale, scale + 1, weight).square().sum()

    ours = adjoint.grad(loss, argnums=(0, 1))
    eager = torch.func.grad(loss, argnums=(0, 1))
    for size in NORMALIZED_SIZES:
        x = torch.linspace(0, 1, size * WIDTH, dtype=torch.float64).reshape(size, WIDTH)
        torch.testing.assert_close(ours(x, scale), eager(x, scale), rtol=1e-8, atol=1e-8)


# In a process of its own: what other tests leave between blocks of memory would count, too.
THOUSAND = """
import gc, random, torch
from pathlib import Path
from torch._dynamo.utils import counters
from tests.runtime.test_any_sizes import WIDTH, attention

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

compiled = torch.compile(attention, backend="adjoint", dynamic=True)
generator = random.Random(4)

def call():
    m, n = generator.randrange(2, 300), generator.randrange(2, 300)
    x = torch.rand(m, WIDTH, requires_grad=True)
    compiled(x, torch.rand(n, WIDTH)).sum().backward()

for _ in range(150):
    call()
gc.collect()
before, graphs = resident(), counters["stats"]["unique_graphs"]
for _ in range(1000):
    call()
gc.collect()
print(resident() - before, counters["stats"]["unique_graphs"] - graphs)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="Linux says how much it is")
def test_a_thousand_sizes_leave_nothing_behind() -> None:
    command = [sys.executable, "-c", THOUSAND]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    grown, graphs = map(int, done.stdout.split())
    assert graphs == 0
    assert grown < 8 << 20
