"""Ranges in torch's profiler: a compiled function, its backward passes, the kernels of a program.

Calls are wrapped while a profiler runs, and only then, so that they cost nothing otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from adjoint.graph.boundary import location_of_graph
from adjoint.graph.derivative import order_of_graph
from adjoint.runtime.bridge import DifferentiableGraph
from adjoint.runtime.cpu.program import CpuProgram
from adjoint.runtime.entry import EntryPoint
from adjoint.runtime.gpu.program import GpuProgram
from adjoint.runtime.plans.program import PlanProgram
from adjoint.torch_private.profiler import on_profiling

# Kernels that the range of a program names.
MAX_NAMED_KERNELS = 3

_ORIGINALS: dict[tuple[type, str], object] = {}
_NAME = "_name_in_profiles"


def _entry(entry: EntryPoint) -> str:
    source = location_of_graph(entry.first.graph_module).source
    return f"adjoint: {'a function' if source is None else source.function}"


def _backward(graph: DifferentiableGraph) -> str:
    source = location_of_graph(graph.graph_module).source
    order = order_of_graph(graph.graph_module.graph)
    function = "a function" if source is None else source.function
    return f"adjoint: backward of {function}, order {order}"


def _program(program: PlanProgram) -> str:
    titles = list(dict.fromkeys(launch.title for launch in program.plan.launches))
    more = [f"{len(titles) - MAX_NAMED_KERNELS} more"] * (len(titles) > MAX_NAMED_KERNELS)
    return f"adjoint kernels: {', '.join([*titles[:MAX_NAMED_KERNELS], *more])}"


_RANGES: tuple[tuple[type, str, Callable[..., str]], ...] = (
    (EntryPoint, "__call__", _entry),
    (DifferentiableGraph, "backward", _backward),
    (CpuProgram, "__call__", _program),
    (GpuProgram, "__call__", _program),
)


def _started() -> None:
    for cls, method, name_of in _RANGES:
        if (cls, method) not in _ORIGINALS:
            original = _ORIGINALS[cls, method] = getattr(cls, method)
            setattr(cls, method, _in_range(original, name_of))


def _stopped() -> None:
    for (cls, method), original in _ORIGINALS.items():
        setattr(cls, method, original)
    _ORIGINALS.clear()


def _in_range(
    original: Callable[..., object], name_of: Callable[..., str]
) -> Callable[..., object]:
    @functools.wraps(original)
    def called(self: object, *args: object, **kwargs: object) -> object:
        name = self.__dict__.get(_NAME)
        if name is None:
            name = self.__dict__[_NAME] = name_of(self)
        with torch.profiler.record_function(name):
            return original(self, *args, **kwargs)

    return called


def install() -> None:
    """Have ranges in every profile from now on."""
    on_profiling(_started, _stopped)
