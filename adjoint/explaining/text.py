"""An explanation as text, for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from adjoint.atlas.artefacts import GraphRecord, KernelRecord
from adjoint.explaining.measuring import Timing
from adjoint.memory.report import size
from adjoint.observing import Compilation, Fallback

if TYPE_CHECKING:
    from adjoint.explaining.explanation import Explanation

# Graphs that run; the others are steps on the way to them.
_RUN = ("forward", "backward")


def written(explanation: Explanation) -> str:
    """The whole text: a summary first, then each part under its heading."""
    parts = {
        "": _summary(explanation),
        "time to compile": stages(explanation),
        "graphs": _graphs(explanation),
        "kernels and library calls, as measured": _timings(explanation.timings),
        "kernels": _kernels(explanation.graphs),
        "saved values and memory": [str(explanation.memory)] if explanation.memory else [],
        "what fell back to eager": fallbacks(explanation.fallbacks),
        "what was compiled": compilations(explanation.compilations),
        "not replayed as a CUDA graph": [f"  {why}" for why in explanation.cuda_graphs],
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
        f"{count(len(run), 'program')}: {count(kernels, 'kernel')}, "
        f"{count(calls, 'library call')}; "
        f"{duration(sum(each.seconds for each in explanation.timings))} a step, as measured; "
        f"{duration(sum(each.seconds for each in explanation.stages))} in the compiler"
    )
    again = sum(bool(each.reason) for each in explanation.compilations)
    fell = len(explanation.fallbacks)
    yield (
        f"{count(fell, 'fallback') if fell else 'nothing fell back to eager'}; "
        f"{count(again, 'recompilation') if again else 'nothing was compiled again'}"
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
            f"  {duration(each.seconds):>9}  {each.name}{order}: {size(each.bytes)} "
            f"({rate:.3g} GB/s), {each.flops:,} FLOP"
        )
        for line in each.lines:
            yield f"{'':13}{line}"


def _kernels(graphs: Iterable[GraphRecord]) -> Iterator[str]:
    for graph in graphs:
        for kernel in graph.kernels:
            yield from _kernel(graph, kernel)


def _kernel(graph: GraphRecord, kernel: KernelRecord) -> Iterator[str]:
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


def duration(seconds: float) -> str:
    """Such as `4.2 ms`."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.1f} us"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def count(number: int, what: str) -> str:
    """Such as `1 kernel` and `2 kernels`."""
    return f"{number} {what}{'' if number == 1 else 's'}"
