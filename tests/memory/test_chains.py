from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.loops.plan import SlotKind
from tests.memory.test_report import Layer, Net, measured

# torch 2.11 warns in each use of its profiler.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")

NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (lambda: Net([Layer(64) for _ in range(2)]), (2048, 64)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 16, 3), nn.SiLU(), nn.Conv2d(16, 32, 3), nn.GroupNorm(4, 32), nn.SiLU()
        ),
        (8, 3, 32, 32),
    ),
}


class Summed(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).square().sum()  # type: ignore[no-any-return]


@pytest.mark.parametrize("of_arguments", [True, False])
@pytest.mark.parametrize("name", NETS)
def test_the_peak_of_a_second_derivative_is_predicted(name: str, of_arguments: bool) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, x = Summed(make()), torch.randn(shape, requires_grad=of_arguments)
    report = adjoint.saved_values(net, x, order=2)
    torch._dynamo.reset()
    gc.collect()
    compiled: Any = torch.compile(net, backend="adjoint", fullgraph=True)
    of = [x] if of_arguments else list(net.parameters())

    def step() -> None:
        slopes = torch.autograd.grad(compiled(x), of, create_graph=True)
        penalty: Any = sum(each.square().sum() for each in slopes)
        penalty.backward()
        net.zero_grad(set_to_none=True)
        x.grad = None

    assert report.peak == pytest.approx(measured(step), rel=0.1)


def test_saved_values_stay_until_the_forward_is_differentiated() -> None:
    x = torch.randn(64, 64, requires_grad=True)
    report = adjoint.saved_values(Summed(nn.Sequential(nn.Linear(64, 64), nn.Tanh())), x, order=2)
    chain = report.footprint
    assert chain is not None
    assert len(chain.programs) == 4
    last = chain.last_reads()
    saved = [each.slot for each in chain.forward.blocks if (0, each.slot) in last]
    assert saved
    assert all(last[0, slot] >= chain.starts[3] - 1 for slot in saved)
    # The cotangents of saved values go from the third program to the fourth.
    passed = [slot for program, slot in last if program == 2]
    kinds = {block.slot: block.kind for block in chain.programs[2].blocks}
    assert {kinds[slot] for slot in passed} == {SlotKind.OUTPUT}
