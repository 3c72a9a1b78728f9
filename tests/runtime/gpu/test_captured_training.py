from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

import adjoint
from adjoint.options import Options
from adjoint.runtime import loading
from adjoint.runtime.gpu.capture import CudaCapturer
from adjoint.runtime.gpu.captured_calls import CapturedCall
from adjoint.runtime.gpu.cuda_graphs import CALLS_BEFORE_CAPTURE, CudaGraphs
from adjoint.runtime.gpu.program import GpuProgram
from adjoint.runtime.gpu.results import AllocateSlot
from tests.capturing import CapturedProgram, Place
from tests.lowering import graph_of, native_program


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The streams on which CUDA graphs are replayed."""
    streams: list[int] = []
    replay = CapturedCall.replay

    def noted(self: CapturedCall, inputs: list[Any], copied: set[int], stream: int) -> Any:
        streams.append(stream)
        return replay(self, inputs, copied, stream)

    monkeypatch.setattr(CapturedCall, "replay", noted)
    return streams


def net() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Linear(64, 256), nn.Tanh(), nn.LayerNorm(256), nn.Linear(256, 1))
    return nn.Sequential(*layers).double()


def check_training(
    device: str, accumulated: int, to_none: bool, replayed: list[int], steps: int = 24
) -> None:
    """Losses and parameters are eager's, whoever holds which gradients."""
    eager, ours = net().to(device), net().to(device)
    torch._dynamo.reset()
    compiled = torch.compile(ours, backend="adjoint")
    batches = [torch.rand(128, 64, device=device, dtype=torch.float64) for _ in range(4)]
    losses: dict[str, list[torch.Tensor]] = {"eager": [], "ours": []}
    for name, module, call in (("eager", eager, eager), ("ours", ours, compiled)):
        optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)
        for step in range(steps):
            for part in range(accumulated):
                x = batches[(step + part) % 4]
                loss = (call(x) - x.sum(-1, keepdim=True)).square().mean()
                loss.backward()
                losses[name].append(loss.detach())
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
    assert len(replayed) > steps // 2
    torch.testing.assert_close(losses["ours"], losses["eager"])
    for one, other in zip(ours.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(one, other)


def check_forces(device: str, replayed: list[int]) -> None:
    """A loss of a derivative: programs read static results of others."""
    module = net().to(device)
    torch._dynamo.reset()
    compiled = torch.compile(module, backend="adjoint")
    place = torch.rand(128, 64, device=device, dtype=torch.float64)
    for step in range(16):
        place.mul_(0.9)
        found = []
        for call in (module, compiled):
            x = place.detach().requires_grad_()
            energy = call(x).sum()
            (force,) = torch.autograd.grad(energy, x, create_graph=True)
            module.zero_grad()
            ((force - step).square().mean() + energy).backward()
            found.append([p.grad.clone() for p in module.parameters() if p.grad is not None])
        torch.testing.assert_close(found[1], found[0])
    assert len(replayed) > 8


class TestUnderAutograd:
    @pytest.fixture(autouse=True)
    def recorded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loading, "CpuProgram", CapturedProgram)

    @pytest.mark.parametrize("accumulated", [1, 3])
    @pytest.mark.parametrize("to_none", [True, False])
    def test_training(self, accumulated: int, to_none: bool, replayed: list[int]) -> None:
        check_training("cpu", accumulated, to_none, replayed)

    def test_forces(self, replayed: list[int]) -> None:
        check_forces("cpu", replayed)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestOnAGpu:
    SHAPE = (512, 768)

    def weights(self) -> torch.Tensor:
        return torch.rand(768, 768, device="cuda") / 768

    def program(self, function: Callable[..., Any], inputs: Sequence[Any]) -> GpuProgram:
        program = native_program(graph_of(function, inputs))
        assert isinstance(program, GpuProgram)
        assert program.cuda_graphs.why == ""
        return program

    def test_values_that_change_are_read(self) -> None:
        x, w = torch.rand(self.SHAPE, device="cuda"), self.weights()
        program = self.program(lambda x, w: [(x @ w).softmax(-1), x.sum(0)], [x, w])
        for _ in range(8):
            w.mul_(1.1)
            product, total = program([x, w])
            torch.testing.assert_close(product, (x @ w).softmax(-1))
            torch.testing.assert_close(total, x.sum(0))
            del product, total
        assert program.cuda_graphs.replays == 8 - CALLS_BEFORE_CAPTURE
        assert program.cuda_graphs.why == ""

    def test_other_addresses_and_held_results(self) -> None:
        w = self.weights()
        inputs = [torch.rand(self.SHAPE, device="cuda") for _ in range(3)]
        program = self.program(lambda x, w: [(x @ w).tanh()], [inputs[0], w])
        held = []
        for step in range(30):
            x = inputs[step % 3]
            x.mul_(0.99)
            held.append((program([x, w])[0], (x @ w).tanh()))
            held = held[-2:]
            for ours, eager in held:
                torch.testing.assert_close(ours, eager)
        assert program.cuda_graphs.replays > 0

    def test_two_streams(self) -> None:
        w = self.weights()
        program = self.program(
            lambda x, w: [(x @ w).tanh() @ w], [torch.rand(self.SHAPE).cuda(), w]
        )
        streams = [torch.cuda.Stream() for _ in range(2)]
        given = [torch.rand(self.SHAPE, device="cuda") for _ in streams]
        eager = [(x @ w).tanh() @ w for x in given]
        torch.cuda.synchronize()
        for _ in range(8):
            found = []
            for stream, x in zip(streams, given, strict=True):
                with torch.cuda.stream(stream):
                    found.append(program([x, w])[0])
            torch.cuda.synchronize()
            torch.testing.assert_close(found, eager)
            del found
        assert program.cuda_graphs.replays > 0

    def test_what_waits_is_refused_by_the_driver_and_nothing_stays_behind(self) -> None:
        x = torch.rand(self.SHAPE, device="cuda")

        def waits(inputs: list[Any], place: Any, stream: int, new: AllocateSlot) -> Any:
            given = inputs.pop()
            return [given * float(given.sum())]

        cuda_graphs, place = CudaGraphs(waits, [0], CudaCapturer(x.device)), Place()
        for _ in range(CALLS_BEFORE_CAPTURE + 2):
            torch.testing.assert_close(cuda_graphs([x], place, 0)[0], x * x.sum())
        assert "it cannot be captured" in cuda_graphs.why
        # Random numbers, memory and streams are as they were.
        assert torch.rand(3, device="cuda").isfinite().all()
        torch.cuda.empty_cache()
        assert not torch.cuda.is_current_stream_capturing()

    def test_somebody_elses_recording_has_all_of_it(self) -> None:
        x = torch.rand(self.SHAPE, device="cuda")
        program = self.program(lambda x: [(x * 2).softmax(-1)], [x])
        for _ in range(CALLS_BEFORE_CAPTURE + 2):
            program([x])
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(CALLS_BEFORE_CAPTURE + 2):
                program([x])
        torch.cuda.synchronize()
        with torch.cuda.graph(graph, stream=side):
            (result,) = program([x])
        x.normal_()
        graph.replay()
        torch.testing.assert_close(result, (x * 2).softmax(-1))

    @pytest.mark.parametrize("accumulated", [1, 3])
    @pytest.mark.parametrize("to_none", [True, False])
    def test_training(self, accumulated: int, to_none: bool, replayed: list[int]) -> None:
        check_training("cuda", accumulated, to_none, replayed)

    def test_forces(self, replayed: list[int]) -> None:
        check_forces("cuda", replayed)

    def test_it_can_be_switched_off(self) -> None:
        x = torch.rand(self.SHAPE, device="cuda")
        graph = graph_of(lambda x: [(x * 2).softmax(-1)], [x])
        program = native_program(graph, Options(cuda_graphs=False))
        assert isinstance(program, GpuProgram)
        for _ in range(CALLS_BEFORE_CAPTURE + 2):
            program([x])
        assert program.cuda_graphs.replays == 0
        assert program.cuda_graphs.why == "it is switched off"

    @pytest.mark.parametrize("eager_rng", [None, True])
    def test_attention_with_dropout_draws_new_numbers_in_each_replay(
        self, eager_rng: bool | None, replayed: list[int]
    ) -> None:
        """The same numbers as without CUDA graphs, and others in each step."""
        batch = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16)

        def attention(x: torch.Tensor) -> torch.Tensor:
            y = nn.functional.scaled_dot_product_attention(x, x, x, dropout_p=0.5)
            return nn.functional.dropout(y, 0.3) * x

        found: list[list[torch.Tensor | None]] = []
        for cuda_graphs in (False, True):
            torch._dynamo.reset()
            compiled = adjoint.compile(attention, cuda_graphs=cuda_graphs, eager_rng=eager_rng)
            torch.manual_seed(0)
            steps: list[torch.Tensor | None] = []
            for _ in range(12):
                x = batch.clone().requires_grad_()
                compiled(x).float().square().mean().backward()
                steps.append(x.grad)
            steps.append(torch.rand(3, device="cuda"))
            found.append(steps)
        assert len(replayed) > 8
        last, before = found[1][-2], found[1][-3]
        assert last is not None
        assert before is not None
        assert not torch.equal(last, before)
        torch.testing.assert_close(found[1], found[0], rtol=0, atol=0)
