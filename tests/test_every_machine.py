"""Kernels of every operator and type, as code for machines other than the one at hand.

Whatever such code calls must be ours.  For levels of x86-64 that the machine at hand has, it is
also run and compared with eager's.  By default a machine sees a share of the operators in the type
that most machines have no instructions for; the rest is slow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import pytest
import torch
from torch.utils._pytree import tree_leaves

from adjoint.emit.llvm import emit_module
from adjoint.emit.nvptx import emit_module as emit_grid
from adjoint.loops.pointwise import TABLE
from adjoint.loops.statements import Kernel
from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.engine import compile_object
from adjoint.runtime.cpu.levels import LEVELS
from adjoint.runtime.cpu.objects import symbols_of
from adjoint.runtime.cpu.support import C_FUNCTIONS, SUPPORT
from adjoint.runtime.gpu.assembly import assemble
from adjoint.target import CPU, Machine, Target, cpu_target, cuda_target
from tests.assembler import ASSEMBLER, said_of
from tests.loops.test_pointwise import DTYPES, SAMPLES, compared, eager_takes, sample
from tests.lower.compositions.test_registry import FAMILIES
from tests.lower.definitions import (
    test_creation,
    test_formulas,
    test_indexing,
    test_pieces,
    test_random,
    test_reductions,
)
from tests.lower.definitions.samples import check_rows, check_samples, numbers, takes
from tests.lowering import graph_of, lower

INTEL, ARM, APPLE = "x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu", "arm64-apple-macosx"

MACHINES = [
    *[Machine(INTEL, cpu) for cpu in LEVELS],
    *[Machine(INTEL, cpu) for cpu in ("haswell", "skylake-avx512", "sapphirerapids")],
    *[Machine(INTEL, cpu) for cpu in ("znver3", "znver4", "znver5")],
    *[Machine(ARM, cpu) for cpu in ("neoverse-n1", "neoverse-v2")],
    Machine(APPLE, "apple-m1"),
]

CAPABILITIES = [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0)]

# What every process that runs kernels has besides: the threads of OpenMP.
THREADS = {"GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads"}

OPS = list(TABLE)

Call = tuple[Callable[..., Any], list[torch.Tensor]]


@pytest.fixture(autouse=True, scope="module")
def _targets() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def pointwise(ops: Sequence[Any], dtype: torch.dtype) -> list[Call]:
    cases = [(call, sample(op, [dtype] * n)) for op in ops for n, call in SAMPLES[op]]
    return [(call, inputs) for call, inputs in cases if eager_takes(call, inputs)]


def reductions(dtype: torch.dtype) -> list[Call]:
    rows = [(call, [numbers(3, 4, 5, dtype=dtype)]) for _, call in test_reductions.ROWS]
    return [(call, inputs) for call, inputs in rows if takes(call, *inputs)]


def scatters(dtype: torch.dtype) -> list[Call]:
    made = [(call, inputs(dtype)) for _, call, inputs in test_indexing.SAMPLES]
    return [(call, inputs) for call, inputs in made if takes(call, *inputs)]


def rest(dtype: torch.dtype) -> list[Call]:
    """What is computed by other definitions, and as a program of several operators."""
    rows = [*test_creation.ROWS, *test_pieces.ROWS]
    made: list[Call] = [(call, [numbers(3, 4, 5, dtype=dtype)]) for _, call in rows]
    samples = [*test_formulas.SAMPLES, *test_pieces.SAMPLES]
    made += [(call, inputs(dtype)) for _, call, inputs in samples]
    made += [(draws(bits, dtype), [test_random.SEEDS]) for bits in (24, 53)]
    if dtype.is_floating_point:
        composed = [row for family in FAMILIES for row in family.ROWS]
        made += [(call, [each(dtype) for each in inputs]) for _, call, inputs in composed]
    return [(call, inputs) for call, inputs in made if takes(call, *inputs)]


def draws(bits: int, dtype: torch.dtype) -> Callable[..., Any]:
    return lambda seeds: test_random.bits(seeds, bits, [5, 7], [7, 1]).to(dtype)


def kernels_of(cases: Sequence[Call], target: Target | None = None) -> list[Kernel]:
    """Those of one graph that has all calls, each once."""

    def every(*tensors: torch.Tensor) -> list[torch.Tensor]:
        given = iter(tensors)
        made = [call(*(next(given) for _ in inputs)) for call, inputs in cases]
        return [leaf for leaf in tree_leaves(made) if leaf is not None]

    plan = lower(
        graph_of(every, [t for _, inputs in cases for t in inputs]),
        target or cpu_target(has_blas=True),
    )
    return [
        dataclasses.replace(launch.kernel, name=f"k{n}") for n, launch in enumerate(plan.launches)
    ]


def check_calls(kernels: Sequence[Kernel], machine: Machine) -> None:
    assert kernels, "nothing became a kernel"
    text = emit_module(kernels, machine.attributes, machine.vector_bytes)
    symbols = symbols_of(compile_object(text, machine))
    assert {kernel.name for kernel in kernels} <= symbols.defined
    assert symbols.undefined <= {*SUPPORT, *C_FUNCTIONS, *THREADS}


def share(place: int) -> list[Any]:
    """Of the operators, those that the machine at this place of the list sees by default."""
    return OPS[place :: len(MACHINES)]


@pytest.mark.parametrize("place", range(len(MACHINES)), ids=[each.cpu for each in MACHINES])
def test_code_for_another_machine_calls_nothing_unknown(place: int) -> None:
    cases = pointwise(share(place), torch.float16)
    cases += reductions(torch.float16)[place :: len(MACHINES)]
    cases += scatters(torch.float16)[place :: len(MACHINES)]
    cases += rest(torch.float16)[place :: len(MACHINES)]
    check_calls(kernels_of(cases), MACHINES[place])


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=[each.cpu for each in MACHINES])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_code_for_another_machine_calls_anything_unknown(
    machine: Machine, dtype: torch.dtype
) -> None:
    for start in range(0, len(OPS), 20):
        cases = pointwise(OPS[start : start + 20], dtype)
        if cases:
            check_calls(kernels_of(cases), machine)
    check_calls(kernels_of(reductions(dtype)), machine)
    check_calls(kernels_of(scatters(dtype)), machine)
    check_calls(kernels_of(rest(dtype)), machine)


def at_hand(level: str) -> Any:
    lacking = machines.missing(level)
    reason = f"this machine has no {', '.join(lacking)}"
    # By default the level that has no instructions for numbers of half the width.
    slow = [pytest.mark.slow] if level != "x86-64-v2" else []
    return pytest.param(level, marks=[pytest.mark.skipif(bool(lacking), reason=reason), *slow])


REDUCED = pytest.mark.parametrize("reduced", [at_hand(level) for level in LEVELS], indirect=True)


@pytest.fixture
def reduced(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """The machine at hand with less."""
    machine = machines.reduced(request.param)
    monkeypatch.setattr(machines, "host", lambda: machine)
    return machine


@REDUCED
@pytest.mark.parametrize(
    "op",
    [op if n % 6 == 0 else pytest.param(op, marks=pytest.mark.slow) for n, op in enumerate(OPS)],
    ids=str,
)
def test_code_for_less_of_this_machine_computes_what_eager_does(op: Any, reduced: Machine) -> None:
    for dtype in (torch.float16, torch.bfloat16):
        compared(op, pointwise([op], dtype))


@pytest.mark.slow
@REDUCED
@pytest.mark.parametrize("op", OPS, ids=str)
def test_in_every_type_it_computes_what_eager_does(op: Any, reduced: Machine) -> None:
    for dtype in DTYPES:
        compared(op, pointwise([op], dtype))


@REDUCED
@pytest.mark.parametrize(
    "dtypes",
    [[torch.float16], pytest.param(DTYPES, marks=pytest.mark.slow)],
    ids=["quick", "all"],
)
def test_reductions_are_what_eager_computes(dtypes: list[torch.dtype], reduced: Machine) -> None:
    calls = [call for _, call in test_reductions.ROWS]
    check_rows(calls if len(dtypes) > 1 else calls[::4], "contiguous", dtypes)


@pytest.mark.slow
@REDUCED
@pytest.mark.parametrize("place", range(len(test_indexing.SAMPLES)))
def test_scatters_are_what_eager_computes(place: int, reduced: Machine) -> None:
    check_samples(test_indexing.SAMPLES[place])


def assembled(cases: Sequence[Call], capability: tuple[int, int], folder: Path) -> None:
    target = cuda_target(CPU, capability, draws_in_kernels=False)
    assert target.machine is not None
    code = assemble(emit_grid(kernels_of(cases, target), target), target.machine)
    if ASSEMBLER is not None:
        said_of(code, f"sm_{capability[0]}{capability[1]}", folder)


NO_ASSEMBLER = pytest.mark.skipif(
    ASSEMBLER is None, reason="there is no ptxas: pip install nvidia-cuda-nvcc"
)


@NO_ASSEMBLER
@pytest.mark.parametrize("place", range(len(CAPABILITIES)), ids=str)
def test_code_for_a_gpu_is_assembled(place: int, tmp_path: Path) -> None:
    cases = pointwise(OPS[place :: 3 * len(CAPABILITIES)], torch.float16)
    cases += reductions(torch.float16)[place :: len(CAPABILITIES)]
    cases += scatters(torch.float16)[place :: len(CAPABILITIES)]
    cases += rest(torch.float16)[place :: 2 * len(CAPABILITIES)]
    assembled(cases, CAPABILITIES[place], tmp_path)


@NO_ASSEMBLER
@pytest.mark.slow
@pytest.mark.parametrize("capability", CAPABILITIES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_code_for_a_gpu_is_assembled(
    dtype: torch.dtype, capability: tuple[int, int], tmp_path: Path
) -> None:
    for start in range(0, len(OPS), 20):
        cases = pointwise(OPS[start : start + 20], dtype)
        if cases:
            assembled(cases, capability, tmp_path)
    assembled(reductions(dtype), capability, tmp_path)
    assembled(scatters(dtype), capability, tmp_path)
    assembled(rest(dtype), capability, tmp_path)
