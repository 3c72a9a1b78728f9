from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from adjoint.loops.runs import why_not_captured
from adjoint.runtime.cpu.engine import load_resident
from adjoint.runtime.cpu.externals import add_external
from adjoint.runtime.gpu.program import LAUNCHER, GpuProgram, used_inputs
from adjoint.runtime.plans.hostcode import CallAddress, HostCode, WordAddress
from tests.lowering import GRID, graph_of, lower, native_program

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_the_launcher_hands_each_kernel_its_arguments() -> None:
    """A function in the driver's place writes down what it is called with."""
    seen: list[Any] = []
    pointer, number = ctypes.c_void_p, ctypes.c_int32
    kind = ctypes.CFUNCTYPE(number, pointer, *[number] * 7, pointer, pointer, pointer)

    def launch(function: int, x: int, y: int, z: int, *rest: Any) -> int:
        threads, stream, args = rest[0], rest[4], rest[5]
        places = ctypes.cast(args, ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))
        seen.append((function, x, threads, stream, [places[0][0], places[1][0]]))
        return 0 if function != 99 else 700

    callback = kind(launch)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    add_external("recorded", address)
    code = load_resident(LAUNCHER.replace("cuLaunchKernel", "recorded"), "adjoint.launch")
    word = ctypes.c_int64
    launcher = ctypes.CFUNCTYPE(word, word, word, word, word, word, word)(code)

    words = HostCode()

    def entry(function: int, blocks: int, value: int) -> WordAddress:
        first = words.put([CallAddress(0), value])
        pointers = words.put([WordAddress(first.index), WordAddress(first.index + 1)])
        return words.put([function, blocks, 256, pointers])

    steps = words.put([entry(5, 3, 11), entry(6, 0, 12), entry(99, 1, 13), entry(7, 1, 14)])
    memory = np.array(words.words, dtype=np.int64)
    base = memory.ctypes.data
    for index, to in words.addresses:
        memory[index] = base + 8 * to
    bindings = [[base + 8 * index, source] for index, source in words.call_addresses]
    table, places = np.array([1234], dtype=np.int64), np.array(bindings, dtype=np.int64)
    start = base + 8 * steps.index
    failed = launcher(places.ctypes.data, len(bindings), table.ctypes.data, start, 4, 77)
    assert failed == 700
    assert seen == [(5, 3, 256, 77, [1234, 11]), (99, 1, 256, 77, [1234, 13])]


def test_inputs_that_nothing_needs_do_not_matter() -> None:
    inputs = [torch.rand(4, 4) for _ in range(3)]
    for function, used in (
        (lambda x, y, z: [x.sin() @ z], [0, 2]),
        (lambda x, y, z: [x + torch.zeros_like(z), y], [0, 1]),
    ):
        assert used_inputs(lower(graph_of(function, inputs), GRID)) == used


def test_a_plan_says_what_cannot_be_recorded() -> None:
    x = torch.rand(4, 4)
    plan = lower(graph_of(lambda x: [x.sin() @ x], [x]), GRID)
    assert why_not_captured(plan) == ""
    plan = lower(graph_of(lambda x: [x.sin(), torch.ops.aten.nonzero(x)], [x]), GRID)
    assert why_not_captured(plan) == "aten.nonzero.default waits for values"


class TestOnAGpu:
    pytestmark = needs_gpu

    def program(self) -> GpuProgram:
        x = torch.rand(64, 48, device="cuda")
        program = native_program(graph_of(lambda x: [(x @ x.t()).softmax(-1), x.sum(0)], [x]))
        assert isinstance(program, GpuProgram)
        return program

    def test_results_of_one_call_outlive_the_next(self) -> None:
        program = self.program()
        one, other = (torch.rand(64, 48, device="cuda") for _ in range(2))
        first, second = program([one]), program([other])
        torch.testing.assert_close(first[0], (one @ one.t()).softmax(-1))
        torch.testing.assert_close(second[0], (other @ other.t()).softmax(-1))

    def test_streams_are_respected(self) -> None:
        program = self.program()
        x = torch.rand(64, 48, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            there = program([x])
        torch.cuda.current_stream().wait_stream(side)
        torch.testing.assert_close(there[1], x.sum(0))

    def test_memory_that_begins_anywhere_is_read(self) -> None:
        program = self.program()
        x = torch.rand(64 * 48 + 1, device="cuda")[1:].view(64, 48)
        torch.testing.assert_close(program([x])[1], x.sum(0))

    @pytest.mark.filterwarnings("error")
    @pytest.mark.parametrize("dropout", [0.0, 0.5])
    def test_attention_in_single_precision_is_compiled(self, dropout: float) -> None:
        """The state of the random generator is on the CPU."""
        q, k, v = (torch.randn(2, 4, 64, 32, device="cuda", requires_grad=True) for _ in range(3))

        def attend(*given: torch.Tensor) -> torch.Tensor:
            q, k, v = (each.sin() for each in given)
            return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout)

        compiled = torch.compile(attend, backend="adjoint", options={"eager_rng": True})
        for _ in range(4):
            found = []
            for run in (attend, compiled):
                torch.manual_seed(0)
                out = run(q, k, v)
                found.append((out, *torch.autograd.grad(out.square().sum(), (q, k, v))))
            torch.testing.assert_close(*found, rtol=1e-4, atol=1e-4)
