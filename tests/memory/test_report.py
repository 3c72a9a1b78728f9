from __future__ import annotations

import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity
from torch.utils.checkpoint import checkpoint

import adjoint
from adjoint.errors import CaptureError
from adjoint.runtime.cpu import program as program_on_cpu


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        hidden = nn.functional.gelu(self.wide(self.norm(x)))
        return x + self.narrow(hidden)  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner = nn.Linear(width, 3 * width)
        self.outer = nn.Linear(width, width)
        self.then = Layer(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, time, width = x.shape
        heads = self.inner(x).view(batch, time, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        query, key, value = heads.unbind()
        weights = (query @ key.mT / width**0.5).softmax(-1)
        mixed = (weights @ value).transpose(1, 2).reshape(batch, time, width)
        return self.then(x + self.outer(mixed))  # type: ignore[no-any-return]


class Net(nn.Module):
    def __init__(self, layers: list[nn.Module], checkpointed: bool = False) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpointed else layer(x)
        return x.square().mean()


NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "layers": (lambda: Net([Layer(64) for _ in range(3)]), (2048, 64)),
    "checkpointed layers": (lambda: Net([Layer(64) for _ in range(3)], True), (8192, 64)),
    "attention": (lambda: Net([Attention(64) for _ in range(2)]), (8, 256, 64)),
    "checkpointed attention": (lambda: Net([Attention(64) for _ in range(2)], True), (8, 256, 64)),
}


# torch 2.11 warns in each use of its profiler.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")


def allocated(step: Callable[[], Any]) -> tuple[int, int]:
    """The most bytes of torch's allocator of the CPU while `step` runs, and those that it keeps."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        step()
    events = profiler.profiler.kineto_results.events()
    total = most = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        if event.name() == "[memory]":
            total += event.nbytes()
            most = max(most, total)
    return most, total


def measured(step: Callable[[], Any]) -> int:
    """The most bytes that a step has, those included that the first one has left to it."""
    _, kept = allocated(step)
    return kept + allocated(step)[0]


@pytest.mark.parametrize("name", NETS)
def test_the_peak_is_predicted(name: str) -> None:
    _compare_peaks(name)


@pytest.mark.parametrize("cache", [2 << 20, 8 << 20])
def test_the_peak_is_predicted_for_other_caches(
    cache: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program_on_cpu, "cache_bytes", lambda: cache)
    _compare_peaks("layers")


def _compare_peaks(name: str) -> None:
    make, shape = NETS[name]
    torch.manual_seed(0)
    net, x = make(), torch.randn(shape)
    report = adjoint.saved_values(net, x)
    torch._dynamo.reset()
    gc.collect()
    compiled: Any = torch.compile(net, backend="adjoint", fullgraph=True)

    def step() -> None:
        net.zero_grad(set_to_none=True)
        compiled(x).backward()

    assert report.peak == pytest.approx(measured(step), rel=0.1)


@pytest.mark.parametrize("depth", [8, pytest.param(48, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("width", "wide"), [(64, 64), (32, 128)])
def test_checkpointed_layers_take_no_more_than_in_eager(depth: int, width: int, wide: int) -> None:
    """Row work alone: without library calls the backward would be one native call, which frees what
    was saved only at its end."""
    torch.manual_seed(0)

    def layer() -> nn.Module:
        return nn.Sequential(nn.Linear(width, wide), nn.GELU(), nn.Linear(wide, width))

    net, x = Net([layer() for _ in range(depth)], checkpointed=True), torch.randn(2048, width)
    torch._dynamo.reset()
    compiled: Any = torch.compile(net, backend="adjoint", fullgraph=True)
    peaks = []
    for function in (net, compiled):

        def step(function: Callable[..., Any] = function) -> None:
            function(x).backward()
            net.zero_grad(set_to_none=True)

        gc.collect()
        peaks.append(measured(step))
    eager, ours = peaks
    # A rounding to whole cache lines for each tensor.
    assert ours <= 1.005 * eager
    assert adjoint.saved_values(net, x).peak == pytest.approx(ours, rel=0.05)


def test_the_memory_of_a_function_alone() -> None:
    """Derivatives inside of it included."""

    def function(x: Tensor) -> Any:
        return adjoint.grad(lambda x: torch.linalg.qr(x.sin())[0].square().sum())(x)

    report = adjoint.saved_values(function, torch.rand(64, 64), order=0)
    assert report.values == ()
    assert report.peak is not None
    assert "most is in memory in the function" in str(report)
    # Its result, at least, and no more than eight matrices.
    assert 64 * 64 * 4 <= report.peak <= 8 * 64 * 64 * 4
    with pytest.raises(ValueError, match="choose 0, 1 or 2"):
        adjoint.saved_values(function, torch.rand(4, 4), order=3)


def test_a_budget_recomputes_and_takes_longer() -> None:
    net, x = Net([Layer(64) for _ in range(3)]), torch.randn(2048, 64)
    free = adjoint.saved_values(net, x)
    within = adjoint.saved_values(net, x, options={"memory_budget": 0.5})
    assert free.peak is not None
    assert within.peak is not None
    assert within.peak <= 0.5 * free.peak
    assert within.bytes < free.bytes
    assert within.seconds > free.seconds
    with pytest.raises(ValueError, match="memory_budget"):
        adjoint.saved_values(net, x, options={"memory_budgets": 0.5})


def program(x: Tensor, w: Tensor) -> Tensor:
    hidden = torch.tanh(x @ w)
    return (hidden @ w.t()).sum()


def arguments() -> tuple[Tensor, Tensor]:
    return torch.rand(32, 8, requires_grad=True), torch.rand(8, 16, requires_grad=True)


def test_each_saved_value_is_explained() -> None:
    report = adjoint.saved_values(program, *arguments())
    value, *others = report.values
    assert all(each.exists_anyway for each in others)
    assert (value.bytes, value.shape, value.dtype) == (32 * 16 * 4, (32, 16), torch.float32)
    assert value.op == "aten.tanh.default"
    assert value.source is not None
    assert value.source.text.strip() == "hidden = torch.tanh(x @ w)"
    assert sorted(each.partition(" ")[0] for each in value.needed_by) == [
        "aten.mm.default",
        "aten.tanh.default",
    ]
    assert value.why == "recomputing it takes longer than storing and loading it"
    # The product, and a function of each element.
    assert value.cost.flops == 2 * 32 * 8 * 16 + 8 * 32 * 16
    assert report.bytes == value.bytes


def test_reasons() -> None:
    def function(x: Tensor, w: Tensor) -> Any:
        return ((x @ w).sin() * torch.rand(16)).exp()

    why = {each.op: each.why for each in adjoint.saved_values(function, *arguments()).values}
    assert why["aten.rand.default"] == "it was drawn at random, and would be drawn anew"
    assert why["args[0]"] == "it is an input, which exists anyway"
    assert why["aten.exp.default"] == "it is a result of the program, which exists anyway"

    def leaving(x: Tensor, w: Tensor) -> Tensor:
        inner = checkpoint(lambda x: (x @ w).tanh(), x, use_reentrant=False)
        return (inner @ w.t()).sum()  # type: ignore[no-any-return]

    why = {each.op: each.why for each in adjoint.saved_values(leaving, *arguments()).values}
    assert re.fullmatch("it leaves checkpoint #0, .*", why["aten.tanh.default"])


def test_the_text_names_the_users_lines() -> None:
    text = str(adjoint.saved_values(program, *arguments()))
    assert text.startswith("saved for the backward: 2.0 KiB in 1 value, besides 2 inputs")
    assert "f32[32, 16]  aten.tanh.default" in text
    assert "hidden = torch.tanh(x @ w)" in text
    assert "peak: " in text
    assert "what would lower it" in text


def test_a_page_of_its_own(tmp_path: Path) -> None:
    report = adjoint.saved_values(program, *arguments())
    report.save(tmp_path / "memory.html")
    page = (tmp_path / "memory.html").read_text(encoding="utf-8")
    assert page.count("<polygon") == len(report.spans)
    assert "saved: aten.tanh.default" in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")


def test_arguments_that_require_no_grad() -> None:
    x, w = (each.detach() for each in arguments())
    assert adjoint.saved_values(program, x, w).bytes == 32 * 16 * 4
    with pytest.raises(CaptureError, match="no result depends differentiably") as raised:
        adjoint.saved_values(lambda x: x + 1, torch.arange(3))
    assert raised.value.source is not None
    assert "lambda x: x + 1" in raised.value.source.text


def test_what_runs_op_by_op_has_no_predicted_peak() -> None:
    report = adjoint.saved_values(torch.linalg.inv, torch.rand(4, 4, requires_grad=True))
    if report.footprint is None:
        assert "not predicted" in str(report)
