"""SizedPrograms that draw random numbers in their kernels, as users call them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import adjoint
from adjoint import kernels
from adjoint.compiler import Compiler
from adjoint.errors import FallbackWarning
from adjoint.graph.operations import random_bits
from adjoint.loops.runs import why_not_captured
from adjoint.options import Options
from adjoint.runtime import loading
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.cpu.engine import LLVMError, load
from adjoint.runtime.gpu.cuda_graphs import CALLS_BEFORE_CAPTURE
from adjoint.runtime.gpu.program import GpuProgram, draws_random_numbers
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.sized_programs import SizedPrograms
from tests.capturing import CapturedProgram
from tests.runtime.test_sized_programs import plans

aten = torch.ops.aten


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[PlanProgram]]:
    """The native programs that are made."""
    found: list[PlanProgram] = []
    native = Compiler.native

    def noted(
        compiler: Compiler, graph_module: torch.fx.GraphModule, **options: Any
    ) -> PlanProgram | None:
        program = native(compiler, graph_module, **options)
        if program is not None:
            found.append(program)
        return program

    monkeypatch.setattr(Compiler, "native", noted)
    torch._dynamo.reset()
    yield found
    torch._dynamo.reset()


def drawing(graph_module: torch.fx.GraphModule) -> PlanProgram | None:
    """Native code whose kernels draw random numbers."""
    return Compiler(Options(target="native", eager_rng=False)).native(graph_module)


def counted(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return adjoint.compile(function, eager_rng=False, **options)


def dropped(x: Tensor) -> Tensor:
    return F.dropout(x, 0.3) * 2


def by_the_fused_op(x: Tensor) -> Tensor:
    result: Tensor = aten.native_dropout.default(x, 0.3, True)[0]
    return result * 2


def test_a_seed_says_which_numbers_come(made: list[PlanProgram]) -> None:
    run, x = counted(dropped), torch.ones(1000)
    torch.manual_seed(5)
    first, second = run(x), run(x)
    torch.manual_seed(5)
    assert torch.equal(run(x), first)
    assert torch.equal(run(x), second)
    assert not torch.equal(first, second)
    torch.manual_seed(6)
    assert not torch.equal(run(x), first)
    assert [program.plan.streams for program in made] == [1]


def test_the_state_of_the_generator_is_what_counts() -> None:
    run, x = counted(dropped), torch.ones(1000)
    with torch.random.fork_rng():
        state = torch.get_rng_state()
        first = run(x)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(run(x), first)


def test_on_a_processor_numbers_are_eagers_unless_asked(made: list[PlanProgram]) -> None:
    x = torch.ones(1000)
    for options in ({}, {"eager_rng": True}, {"eager_rng": None}):
        run = adjoint.compile(dropped, **options)
        torch.manual_seed(5)
        found = run(x)
        torch.manual_seed(5)
        assert torch.equal(found, dropped(x))
    assert [program.plan.streams for program in made] == [0] * len(made)
    assert made
    assert draws_random_numbers(made[0].plan)


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "Dropout": (lambda: nn.Dropout(0.4), (30, 40)),
    "Dropout1d": (lambda: nn.Dropout1d(0.4), (30, 40, 5)),
    "Dropout2d": (lambda: nn.Dropout2d(0.4), (30, 40, 5, 2)),
    "Dropout3d": (lambda: nn.Dropout3d(0.4), (30, 40, 5, 2, 2)),
    "AlphaDropout": (lambda: nn.AlphaDropout(0.4), (30, 40)),
    "FeatureAlphaDropout": (lambda: nn.FeatureAlphaDropout(0.4), (30, 40, 5)),
    "RReLU": (lambda: nn.RReLU(0.1, 0.9), (30, 40)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_draw_as_eager_does(name: str, made: list[PlanProgram]) -> None:
    """What is left, and how large, is as likely; for a channel as a whole where eager's is."""
    make, shape = LAYERS[name]
    layer, x = make(), -torch.ones(shape)
    run = counted(layer)
    ours, eager = (torch.stack([call(x) for _ in range(20)]) for call in (run, layer))
    assert [program.plan.streams for program in made] == [1]
    assert why_not_captured(made[0].plan) == ""
    assert abs(ours.mean() - eager.mean()) < 0.05
    assert abs(ours.std() - eager.std()) < 0.05
    if name != "RReLU":
        torch.testing.assert_close(ours.unique(), eager.unique())
    channels = ours.flatten(3) if len(shape) > 2 else ours[..., None]
    assert torch.equal(channels[..., :1].expand_as(channels), channels)
    layer.eval()
    assert torch.equal(counted(layer)(x), layer(x))


@pytest.mark.parametrize("function", [dropped, by_the_fused_op])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_what_was_drawn_is_not_drawn_again_for_gradients(function: Any, dtype: Any) -> None:
    x = torch.rand(50, 60).add(1).to(dtype).requires_grad_()
    run = counted(lambda x: function(x.square()))
    for _ in range(3):
        y = run(x)
        kept = (y != 0).to(dtype)
        assert 0.6 < kept.mean() < 0.8
        (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        torch.testing.assert_close(gradient, kept * x * (4 / 0.7))
        (second,) = torch.autograd.grad(gradient.sum(), x)
        torch.testing.assert_close(second, kept * (4 / 0.7))


def test_what_was_drawn_is_not_drawn_again_for_gradients_of_functions() -> None:
    x = torch.rand(1000) + 1

    def cube(x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.dropout(x.pow(3), 0.5)
        return y.sum(), y

    first = adjoint.grad(cube, has_aux=True)
    gradient, y = counted(first)(x)
    torch.testing.assert_close(gradient, torch.where(y != 0, 6 * x.square(), 0))

    def summed(x: Tensor) -> tuple[Tensor, Tensor]:
        found, y = first(x)
        return found.sum(), y

    second, y = counted(adjoint.grad(summed, has_aux=True))(x)
    torch.testing.assert_close(second, torch.where(y != 0, 12 * x, 0))
    assert 0.4 < (y != 0).double().mean() < 0.6


def test_gradients_do_not_change_which_numbers_come() -> None:
    run, x = counted(dropped), torch.ones(1000)
    torch.manual_seed(2)
    plain = run(x)
    torch.manual_seed(2)
    assert torch.equal(run(x.requires_grad_()), plain)


def test_what_is_computed_again_draws_the_same() -> None:
    """A checkpoint puts the generator back to where it was."""
    x = torch.rand(1000).add(1).requires_grad_()
    run = counted(lambda x: dropped(x.square()))
    run(x)
    y = checkpoint(run, x, use_reentrant=False)
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(y != 0, x * (4 / 0.7), 0))


def test_any_size_has_the_same_numbers(made: list[PlanProgram]) -> None:
    """Which number an element gets depends on its place, and not on how many there are."""
    graph = adjoint.capture(lambda x: x + torch.rand_like(x), torch.rand(6), dynamic=True)
    run = SizedPrograms(graph.graph_module, drawing)
    found = []
    for size in (300, 6, 1, 2, 0, 4999):
        torch.manual_seed(1)
        found.append(run([torch.zeros(size)])[0])
        assert found[-1].shape == (size,)
    for each in found[:-1]:
        assert torch.equal(each, found[-1][: each.numel()])
    assert len(made) == 1


def test_a_program_made_anew_for_other_sizes_has_the_same_numbers() -> None:
    graph = adjoint.capture(
        lambda x: F.dropout(x, 0.5) + torch.randn_like(x), torch.rand(6), dynamic=True
    )
    found = []
    with plans() as sizes:
        run = SizedPrograms(graph.graph_module, drawing)
        for size in (6, 9, 300):
            torch.manual_seed(1)
            found.append(run([torch.ones(size)])[0])
    assert sizes == [6, 9, 300]
    for each in found[:-1]:
        assert torch.equal(each, found[-1][: each.numel()])


def test_numbers_of_kernels_and_of_torch_in_one_program(made: list[PlanProgram]) -> None:
    generator = torch.Generator()

    def mixed(x: Tensor) -> tuple[Tensor, Tensor]:
        return x + torch.rand_like(x), torch.rand(5, generator=generator) + torch.poisson(x[:5])

    x, found = torch.ones(50), []
    run = SizedPrograms(adjoint.capture(mixed, x).graph_module, drawing)
    for _ in range(2):
        torch.manual_seed(1)
        generator.manual_seed(2)
        found.append(run([x]))
    generator.manual_seed(2)
    own = torch.rand(5, generator=generator)
    torch.testing.assert_close(found[0][1].frac(), own)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
    assert [program.plan.streams for program in made] == [1]


class Watching(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def test_a_mode_that_watches_sees_eagers_draws() -> None:
    graph = adjoint.capture(lambda x: x + torch.rand_like(x), torch.rand(6))
    run, x = SizedPrograms(graph.graph_module, drawing), torch.zeros(6)
    torch.manual_seed(1)
    expected = torch.rand_like(x)
    torch.manual_seed(1)
    with Watching():  # type: ignore[no-untyped-call]
        assert torch.equal(run([x])[0], expected)


def test_a_kernel_that_is_refused_is_in_pieces_and_draws_the_same() -> None:
    def function(x: Tensor) -> Tensor:
        return (F.dropout(x * 7.125, 0.5) + torch.rand_like(x)).sort().values * 2

    graph = adjoint.capture(function, torch.rand(6), dynamic=True).graph_module
    x = torch.ones(6)
    torch.manual_seed(1)
    expected = SizedPrograms(graph, drawing)([x])

    def refuse_draws(text: str, names: list[str]) -> list[NativeFunction]:
        if "@philox" in text:
            raise LLVMError("no")
        return load(text, names)

    with (
        mock.patch.object(kernels, "load", refuse_draws),
        mock.patch.dict(kernels._KERNELS, clear=True),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        in_pieces = SizedPrograms(graph, drawing)
    assert any(each.category is FallbackWarning for each in said)
    (version,) = in_pieces._versions.versions
    program = version.value
    called = [getattr(step, "target", None) for step in program.plan.steps]
    assert called.count(random_bits) == 2
    torch.manual_seed(1)
    torch.testing.assert_close(list(in_pieces([x])), list(expected))


class TestRecorded:
    """What a device does again by itself draws other numbers each time."""

    @pytest.fixture(autouse=True)
    def recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "CpuProgram", CapturedProgram)

    def test_replays_draw_anew(self, made: list[PlanProgram]) -> None:
        run, x = counted(dropped), torch.ones(100, 100)
        masks: list[list[Tensor]] = []
        for _ in range(2):
            torch.manual_seed(4)
            masks.append([run(x).clone() for _ in range(CALLS_BEFORE_CAPTURE + 6)])
        (program,) = made
        assert isinstance(program, CapturedProgram)
        assert program.cuda_graphs.replays >= 6
        assert program.cuda_graphs.why == ""
        for one, other in zip(*masks, strict=True):
            assert torch.equal(one, other)
        different = {tuple(mask.flatten().tolist()) for mask in masks[0]}
        assert len(different) == len(masks[0])

    def test_training(self, made: list[PlanProgram]) -> None:
        x = torch.rand(64, 64).add(1).requires_grad_()
        run = counted(lambda x: dropped(x.square()))
        for _ in range(CALLS_BEFORE_CAPTURE + 6):
            y = run(x)
            (gradient,) = torch.autograd.grad(y.sum(), x)
            torch.testing.assert_close(gradient, torch.where(y != 0, x * (4 / 0.7), 0))
        assert len(made) == 2
        for program in made:
            assert isinstance(program, CapturedProgram)
            assert program.cuda_graphs.replays >= 3


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    def test_kernels_draw_unless_told_otherwise(self, made: list[PlanProgram]) -> None:
        x = torch.ones(1000, 1000, device="cuda")
        run = adjoint.compile(dropped)
        masks: list[list[Tensor]] = []
        for _ in range(2):
            torch.manual_seed(4)
            masks.append([run(x).clone() for _ in range(CALLS_BEFORE_CAPTURE + 6)])
        (program,) = made
        assert isinstance(program, GpuProgram)
        assert program.plan.streams == 1
        assert program.cuda_graphs.why == ""
        assert program.cuda_graphs.replays >= 6
        for one, other in zip(*masks, strict=True):
            assert torch.equal(one, other)
            assert abs((one == 0).double().mean() - 0.3) < 0.005
        for one, other in zip(masks[0], masks[0][1:], strict=False):
            assert not torch.equal(one, other)

    def test_eagers_numbers_if_asked(self) -> None:
        x = torch.ones(1000, device="cuda")
        run = adjoint.compile(dropped, eager_rng=True)
        torch.manual_seed(4)
        found = run(x)
        torch.manual_seed(4)
        torch.testing.assert_close(found, dropped(x))

    def test_torch_draws_none_of_our_numbers(self) -> None:
        run = adjoint.compile(lambda x: x + torch.rand_like(x))
        x = torch.zeros(10000, device="cuda")
        torch.manual_seed(4)
        drawn = torch.cat([run(x), torch.rand_like(x), run(x), torch.rand_like(x)])
        # Of so many numbers of 24 bits as many are the same as chance makes so.
        again = drawn.numel() - drawn.unique().numel()
        assert again < 2 * drawn.numel() ** 2 / 2**25

    def test_gradients(self) -> None:
        x = torch.rand(500, 600, device="cuda").add(1).requires_grad_()
        run = adjoint.compile(lambda x: dropped(x.square()))
        for _ in range(CALLS_BEFORE_CAPTURE + 3):
            y = run(x)
            (gradient,) = torch.autograd.grad(y.sum(), x, create_graph=True)
            torch.testing.assert_close(gradient, torch.where(y != 0, x * (4 / 0.7), 0))
            (second,) = torch.autograd.grad(gradient.sum(), x)
            torch.testing.assert_close(second, torch.where(y != 0, 4 / 0.7, 0.0))

    def test_what_somebody_records_draws_anew(self) -> None:
        x = torch.ones(1000, device="cuda")
        run = adjoint.compile(dropped)
        run(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = run(x)
        found = []
        for _ in range(2):
            graph.replay()
            found.append(y.clone())
        assert not torch.equal(found[0], found[1])
