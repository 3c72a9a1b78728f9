"""An explanation as dictionaries, lists, texts and numbers: for JSON, and for the page."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from adjoint.atlas.artefacts import GraphHistory, KernelRecord, Port, Value
from adjoint.errors import SourceLine
from adjoint.memory.report import MemoryReport
from adjoint.observing import Compilation, Fallback
from adjoint.open_types import FromText

if TYPE_CHECKING:
    from adjoint.explaining.explanation import Explanation


def of_explanation(explanation: Explanation) -> dict[str, FromText]:
    """Everything; lines, kernels and graphs are referred to by number."""
    lines = _Lines()
    kernels = [kernel for graph in explanation.graphs for kernel in graph.kernels]
    numbers = {kernel.name: place for place, kernel in enumerate(kernels)}
    regions = _Regions(explanation.graphs)
    graphs = [_graph(each, lines, numbers, regions) for each in explanation.graphs]
    for graph, name in zip(graphs, _names(explanation.graphs), strict=True):
        graph["name"] = name
    found = {
        "function": explanation.function,
        "order": explanation.order,
        "stages": [asdict(each) for each in explanation.stages],
        "graphs": graphs,
        "kernels": [_kernel(each, lines) for each in kernels],
        "timings": [
            {**asdict(each), "kernels": [numbers[name] for name in each.kernels]}
            for each in explanation.timings
        ],
        "memory": None if explanation.memory is None else _memory(explanation.memory, lines),
        "fallbacks": [of_fallback(each) for each in explanation.fallbacks],
        "compilations": [of_compilation(each) for each in explanation.compilations],
        "cuda_graphs": list(explanation.cuda_graphs),
        "rates": None if explanation.rates is None else asdict(explanation.rates),
        "lines": [asdict(each) for each in lines.known],
        "files": dict(explanation.files),
    }
    # Tuples become lists, as in a file.
    plain: dict[str, object] = json.loads(json.dumps(found))
    return plain


def of_fallback(fallback: Fallback) -> dict[str, object]:
    source = fallback.source
    return {"message": fallback.message, "source": None if source is None else asdict(source)}


def of_compilation(compilation: Compilation) -> dict[str, FromText]:
    return asdict(compilation)


def _names(graphs: Sequence[GraphHistory]) -> Iterator[str]:
    """The titles of graphs, with a number where several have the same."""
    seen: dict[str, int] = {}
    for graph in graphs:
        number = seen[graph.title] = seen.get(graph.title, 0) + 1
        yield graph.title if number == 1 else f"{graph.title} ({number})"


class _Lines:
    """Numbers of the user's lines."""

    def __init__(self) -> None:
        self.known: dict[SourceLine, int] = {}

    def of(self, line: SourceLine | None) -> int | None:
        return None if line is None else self.known.setdefault(line, len(self.known))


class _Regions:
    """Finds the forward values whose derivatives the reverse nodes of each order compute."""

    def __init__(self, graphs: Sequence[GraphHistory]) -> None:
        self._origins: dict[tuple[str, int], frozenset[int]] = {}
        for graph in graphs:
            if graph.role == "joint":
                for value in graph.first.values:
                    self._origins.setdefault((value.name, graph.order), value.origins)

    def of(self, value: Value) -> list[int]:
        """The origins of the forward value whose derivative `value` belongs to; else empty."""
        return [] if value.grad_of is None else sorted(self._origins.get(value.grad_of, ()))


def _graph(
    graph: GraphHistory, lines: _Lines, numbers: dict[str, int], regions: _Regions
) -> dict[str, object]:
    computed = graph.computed_by()
    return {
        "title": graph.title,
        "role": graph.role,
        "order": graph.order,
        "text": graph.first.text,
        "inputs": _ports(graph.first.inputs),
        "outputs": _ports(graph.first.outputs),
        "values": [
            {
                "name": value.name,
                "operation": value.operation,
                "type": value.type,
                "line": lines.of(value.line),
                "origins": sorted(value.origins),
                "derivative_of": regions.of(value),
                "inputs": list(value.inputs),
                "kernels": [numbers[kernel.name] for kernel in computed[value.name]],
            }
            for value in graph.first.values
        ],
        "passes": [asdict(each) for each in graph.touches],
        "saved": list(graph.saved),
        "kernels": [numbers[kernel.name] for kernel in graph.kernels],
        "calls": list(graph.calls),
        "is_lowered": graph.is_lowered,
    }


def _ports(ports: Iterable[Port]) -> list[dict[str, object]]:
    return [asdict(each) for each in ports]


def _kernel(kernel: KernelRecord, lines: _Lines) -> dict[str, object]:
    return {
        "name": kernel.name,
        "title": kernel.title,
        "text": kernel.text,
        "lines": [lines.of(each) for each in kernel.lines],
        "loops": list(kernel.loops),
        "operands": [asdict(each) for each in kernel.operands],
        "read": kernel.read,
        "written": kernel.written,
        "remarks": list(kernel.remarks),
    }


def _memory(report: MemoryReport, lines: _Lines) -> dict[str, object]:
    pair = report.footprint
    return {
        "text": str(report),
        "peak": report.peak,
        "forward_steps": 0 if pair is None else pair.forward.steps,
        "saved": [
            {
                "name": each.name,
                "bytes": each.bytes,
                "type": each.described,
                "op": each.op,
                "line": lines.of(each.source),
                "needed_by": list(each.needed_by),
                "why": each.why,
                "exists_anyway": each.exists_anyway,
                "in_host_memory": each.in_host_memory,
            }
            for each in report.values
        ],
        "spans": [
            {
                "kind": each.kind,
                "name": each.name,
                "line": lines.of(each.source),
                "bytes": each.bytes,
                "first": each.first,
                "last": each.last,
            }
            for each in report.spans
        ],
    }
