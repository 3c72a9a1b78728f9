"""`adjoint.saved_values`: what is saved for the backward, why, and where memory peaks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from adjoint.compiler import Compiler
from adjoint.errors import CaptureError, SourceLine
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.derivative import Derivative
from adjoint.graph.metadata import outputs_of
from adjoint.loops.footprint import PairFootprint, profile
from adjoint.loops.plan import SlotKind
from adjoint.memory.picture import Span, page
from adjoint.memory.values import SavedValue, explained
from adjoint.options import Options
from adjoint.quantities import counted, in_bytes, in_flops
from adjoint.runtime.calling import graph_inputs
from adjoint.target import Rates
from adjoint.targets import target_of
from adjoint.torch_private import trees

# Values that the text shows; the others are summed up.
MAX_SHOWN = 40

# Values at the peak that the text shows.
MAX_AT_PEAK = 8

# Lines that the text proposes to checkpoint.
MAX_PROPOSALS = 3


@dataclass(frozen=True)
class MemoryReport:
    """What a function saves for its derivative, and the memory that both take.

    >>> import torch, adjoint
    >>> report = adjoint.saved_values(lambda x: x.exp().sum(), torch.rand(4, requires_grad=True))
    >>> isinstance(report, adjoint.MemoryReport)
    True
    """

    values: tuple[SavedValue, ...]
    """The largest first."""
    footprint: PairFootprint | None
    """The memory of forward and backward, predicted; None: one of them runs op by op."""
    spans: tuple[Span, ...]
    """What is in memory, and when: in steps of the forward, then of the backward."""
    rates: Rates
    """The nominal rates of the target, for estimates of time."""

    @property
    def bytes(self) -> int:
        """The bytes that are held only for the backward."""
        return sum(each.bytes for each in self.values if not each.exists_anyway)

    @property
    def peak(self) -> int | None:
        """The most bytes that forward and backward allocate, as predicted."""
        return None if self.footprint is None else self.footprint.peak

    @property
    def peak_step(self) -> int:
        """The step at which most is in memory, counted through forward and backward."""
        steps = 1 + max((each.last for each in self.spans), default=0)
        in_use = profile(steps, ((each.first, each.last, each.bytes) for each in self.spans))
        return in_use.index(max(in_use))

    def at_peak(self) -> list[Span]:
        """What is in memory at the peak, the largest first."""
        place = self.peak_step
        there = [each for each in self.spans if each.first <= place <= each.last]
        return sorted(there, key=lambda each: -each.bytes)

    def __str__(self) -> str:
        return "\n".join([*self._saved(), "", *self._peak(), "", *self._proposals()]).rstrip()

    def html(self) -> str:
        """A page of its own, with a picture of memory over time above the text."""
        forward = 0 if self.footprint is None else self.footprint.forward.steps
        return page(str(self), self.spans, forward)

    def save(self, path: str | Path) -> None:
        """Write the page to a file."""
        Path(path).write_text(self.html(), encoding="utf-8")

    def _saved(self) -> Iterable[str]:
        own = [each for each in self.values if not each.exists_anyway]
        anyway = len(self.values) - len(own)
        besides = f", besides {anyway} inputs and results, which exist anyway" if anyway else ""
        values = counted(len(own), "value")
        yield f"saved for the backward: {in_bytes(self.bytes)} in {values}{besides}"
        for each in own[:MAX_SHOWN]:
            yield ""
            yield f"  {in_bytes(each.bytes):>10}  {each.described}  {each.op}"
            if each.source is not None:
                yield f"{'':14}at {each.source}"
            if each.needed_by:
                yield f"{'':14}needed by the derivative of {', '.join(each.needed_by)}"
            yield f"{'':14}saved because {each.why}"
            yield f"{'':14}recomputing it: {self._cost(each)}"
        rest = own[MAX_SHOWN:]
        if rest:
            yield ""
            yield f"  {in_bytes(sum(each.bytes for each in rest)):>10}  in {len(rest)} more"

    def _cost(self, value: SavedValue) -> str:
        milliseconds = 1e3 * value.cost.seconds(self.rates)
        traffic = f"{in_bytes(value.cost.bytes)} of traffic"
        return f"{in_flops(value.cost.flops)}, {traffic}, about {milliseconds:.3g} ms"

    def _peak(self) -> Iterable[str]:
        pair = self.footprint
        if pair is None:
            yield "peak: not predicted, because one of the programs runs op by op"
            return
        where = "forward" if self.peak_step < pair.forward.steps else "backward"
        yield (
            f"peak: {in_bytes(pair.peak)} predicted, of which {in_bytes(pair.reserved)} are "
            f"reserved for temporaries; {in_bytes(pair.between)} are held "
            "between forward and backward"
        )
        yield f"most is in memory in the {where}:"
        shown = self.at_peak()
        for each in shown[:MAX_AT_PEAK]:
            line = f" at {each.source}" if each.source is not None else ""
            yield f"  {in_bytes(each.bytes):>10}  {each.kind}: {each.name}{line}"
        rest = shown[MAX_AT_PEAK:]
        if rest:
            yield f"  {in_bytes(sum(each.bytes for each in rest)):>10}  in {len(rest)} more"

    def _proposals(self) -> Iterable[str]:
        """The lines that hold most of the memory, and what recomputing them would cost."""
        by_line: dict[SourceLine, list[SavedValue]] = {}
        for each in self.values:
            if not each.exists_anyway and each.source is not None:
                by_line.setdefault(each.source, []).append(each)
        best = sorted(by_line.items(), key=lambda pair: -sum(each.bytes for each in pair[1]))
        if not best:
            return
        yield "what would lower it: the option memory_budget, or a checkpoint around these lines"
        for source, values in best[:MAX_PROPOSALS]:
            saved, seconds = (
                sum(v.bytes for v in values),
                sum(v.cost.seconds(self.rates) for v in values),
            )
            yield f"  {in_bytes(saved):>10}  for about {1e3 * seconds:.3g} ms at {source}"


def saved_values(function: Callable[..., object], *args: object, **kwargs: object) -> MemoryReport:
    """What `function(*args, **kwargs)` saves for its derivative, and the memory that it needs.

    The function is captured and compiled, but not run.  The derivative is with respect to the
    tensors that require grad; if none does, to all floating-point arguments.

        >>> import torch, adjoint
        >>> x = torch.rand(4, requires_grad=True)
        >>> adjoint.saved_values(lambda x: x.exp().sum(), x).bytes
        16
    """
    compiler = Compiler(Options(progress=False))
    captured = compiler.captured_call(function, args, kwargs, False)
    graph_module = captured.graph_module
    derivative = compiler.derivative(graph_module, _wrt(captured, args, kwargs), segmented=True)
    if derivative is None:
        raise CaptureError(
            "the derivative of a function",
            "no result depends differentiably on its arguments",
            "pass tensors that require grad",
        )
    return report_of(derivative, compiler)


def report_of(derivative: Derivative, compiler: Compiler) -> MemoryReport:
    """What a derivative saves, and the memory of its programs."""
    pair = compiler.footprint(derivative)
    rates = target_of(derivative.runs, compiler.options).rates
    values = explained(derivative)
    return MemoryReport(values, pair, _spans(derivative, pair, values), rates)


def _wrt(captured: CapturedProgram, args: object, kwargs: object) -> tuple[int, ...]:
    """Positions of the graph's inputs to differentiate with respect to."""
    given = [leaf for leaf in trees.leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    inputs = graph_inputs(captured.calling, captured.leaves(given))
    tensors = [(place, each) for place, each in enumerate(inputs) if isinstance(each, torch.Tensor)]
    wanted = tuple(place for place, each in tensors if each.requires_grad)
    return wanted or tuple(
        place for place, each in tensors if each.dtype.is_floating_point or each.dtype.is_complex
    )


def _spans(
    derivative: Derivative, pair: PairFootprint | None, values: Iterable[SavedValue]
) -> tuple[Span, ...]:
    """What is in memory, and when."""
    if pair is None:
        return ()
    forward, backward = pair.forward, pair.backward
    end = forward.steps + backward.steps
    last_read = pair.last_reads()
    known = {each.name: each for each in values}
    saved: dict[int, SavedValue] = {}
    """By the slot of the forward program."""
    for slot, node in zip(forward.outputs, outputs_of(derivative.runs.graph), strict=True):
        if slot in last_read and node.name in known:
            saved.setdefault(slot, known[node.name])
    found: list[Span] = []
    for block in forward.blocks:
        value = saved.get(block.slot)
        if value is not None:
            until = forward.steps + last_read[block.slot]
            span = (block.first, until)
            found.append(Span("saved", value.op, value.source, block.bytes, *span))
        elif block.kind is SlotKind.OUTPUT:
            found.append(Span("result", block.made_by, None, block.bytes, block.first, end))
        elif block.kind is not SlotKind.INPUT:
            span = (block.first, block.last)
            found.append(Span("temporary", block.made_by, None, block.bytes, *span))
    for block in backward.blocks:
        if block.kind is not SlotKind.INPUT:
            kind = "gradient" if block.kind is SlotKind.OUTPUT else "temporary"
            span = forward.steps + block.first, forward.steps + block.last
            found.append(Span(kind, block.made_by, None, block.bytes, *span))
    return tuple(found)
