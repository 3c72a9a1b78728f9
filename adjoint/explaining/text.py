"""An explanation as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from adjoint.atlas.artefacts import GraphHistory, KernelRecord
from adjoint.explaining.measuring import Timing
from adjoint.observing import Compilation, Fallback
from adjoint.quantities import counted, duration, in_bytes

if TYPE_CHECKING:
    from adjoint.explaining.explanation import Explanation

# Graphs that run; the others are steps on the way to them.
_RUN = ("forward", "backward")


def written(explanation: Explanation) -> str:
    """The whole text: a summary first, then each part under its heading, the listings last."""
    parts = {
        "": _summary(explanation),
        "kernels and library calls, as measured": _timings(explanation.timings),
        "what fell back to eager": fallbacks(explanation.fallbacks),
        "what was compiled": compilations(explanation.compilations),
        "not replayed as a CUDA graph": [f"  {why}" for why in explanation.cuda_graphs],
        "time to compile": stages(explanation),
        "saved values and memory": [str(explanation.memory)] if explanation.memory else [],
        "graphs": _graphs(explanation),
        "kernels": _kernels(explanation.graphs),
    }
    sections: list[str] = []
    for title, lines in parts.items():
        found = list(lines)
        if found:
            sections.append("\n".join([title, "-" * len(title), *found] if title else found))
    return "\n\n".join(sections)


def _summary(explanation: Explanation) -> Iterator[str]:
    kernels = sum(len(graph.kernels) for graph in explanation.graphs)
    calls = sum(len(graph.calls) for graph in explanation.graphs)
    run = [graph for graph in explanation.graphs if graph.is_lowered]
    times = {0: "not differentiated", 1: "differentiated once", 2: "differentiated twice"}
    order = times.get(explanation.order, f"differentiated {explanation.order} times")
    yield f"{explanation.function}, {order}"
    yield (
        f"{counted(len(run), 'program')}: {counted(kernels, 'kernel')}, "
        f"{counted(calls, 'library call')}; "
        f"{duration(sum(each.seconds for each in explanation.timings))} a step, as measured; "
        f"{duration(sum(each.seconds for each in explanation.stages))} in the compiler"
    )
    again = sum(bool(each.reason) for each in explanation.compilations)
    fell = len(explanation.fallbacks)
    yield (
        f"{counted(fell, 'fallback') if fell else 'nothing fell back to eager'}; "
        f"{counted(again, 'recompilation') if again else 'nothing was compiled again'}"
    )


def stages(explanation: Explanation) -> Iterator[str]:
    """The stages and passes, the longest first."""
    totals: dict[str, list[float]] = {}
    for each in explanation.stages:
        totals.setdefault(each.stage, []).append(each.seconds)
    for stage, times in sorted(totals.items(), key=lambda pair: -sum(pair[1])):
        yield f"  {duration(sum(times)):>9}  {stage}" + (f", {len(times)} runs" * (len(times) > 1))


def _graphs(explanation: Explanation) -> Iterator[str]:
    for graph in explanation.graphs:
        if graph.role in _RUN or not any(g.role in _RUN for g in explanation.graphs):
            yield f"# {graph.title}"
            yield graph.first.text
            changed = [each for each in graph.touches if each.changes]
            if changed:
                names = ", ".join(f"{t.name} (-{t.removed} +{t.added} lines)" for t in changed)
                yield f"# changed by {names}"
            if graph.calls:
                yield f"# library calls: {', '.join(graph.calls)}"
            yield ""


def _timings(timings: Sequence[Timing]) -> Iterator[str]:
    for each in sorted(timings, key=lambda one: -one.seconds):
        rate = each.bytes / each.seconds / 1e9 if each.seconds else 0.0
        order = "" if each.order == 0 else f", order {each.order}"
        yield (
            f"  {duration(each.seconds):>9}  {each.name}{order}: {in_bytes(each.bytes)} "
            f"({rate:.3g} GB/s), {each.flops:,} FLOP"
        )
        for line in each.lines:
            yield f"{'':13}{line}"


def _kernels(graphs: Iterable[GraphHistory]) -> Iterator[str]:
    for graph in graphs:
        for kernel in graph.kernels:
            yield from _kernel(graph, kernel)


def _kernel(graph: GraphHistory, kernel: KernelRecord) -> Iterator[str]:
    yield f"# {kernel.title}, of the {graph.title}"
    yield f"# reads {kernel.read} bytes, writes {kernel.written}"
    yield kernel.text


def fallbacks(found: Iterable[Fallback]) -> Iterator[str]:
    """What runs in eager torch, and where."""
    for each in found:
        yield f"  {each.message}" + (f"\n    at {each.source}" if each.source else "")


def compilations(found: Iterable[Compilation]) -> Iterator[str]:
    """What was compiled, how long that took, and why if it was compiled before."""
    for each in found:
        again = f" again, because {each.reason}" if each.reason else ""
        yield f"  {duration(each.seconds):>9}  {each.function} ({each.what}){again}"
