"""`adjoint.saved_values`: what is saved for the backward, why, and where memory peaks."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from adjoint.compiler import Compiler
from adjoint.errors import CaptureError, SourceLine
from adjoint.graph.boundary import location_of_function
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.derivative import Derivative
from adjoint.graph.metadata import outputs_of
from adjoint.loops.chain_footprint import ChainFootprint
from adjoint.loops.footprint import profile
from adjoint.loops.plan import SlotKind
from adjoint.memory.chains import second_derivative
from adjoint.memory.picture import Span, page
from adjoint.memory.values import SavedValue, explained
from adjoint.options import Options
from adjoint.partition.budget import seconds_of_pair
from adjoint.quantities import counted, in_bytes, in_flops
from adjoint.rules.costs import seconds_of
from adjoint.runtime.calling import graph_inputs
from adjoint.target import Rates
from adjoint.targets import target_of
from adjoint.torch_private import trees

# Values that the text shows; the others are summed up.
MAX_SHOWN = 40

# Values at the peak that the text shows.
MAX_AT_PEAK = 8

# What the programs are, by how many there are.
PROGRAMS = {
    1: ("function",),
    2: ("forward", "backward"),
    4: ("forward", "first derivative", "second derivative", "backward of the forward"),
}

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
    footprint: ChainFootprint | None
    """The memory of all programs, predicted; None: one of them runs op by op."""
    spans: tuple[Span, ...]
    """What is in memory, and when: in steps of the forward, then of the programs after it."""
    rates: Rates
    """The nominal rates of the target, for estimates of time."""
    seconds: float
    """The time of the function and its first backward, estimated from these rates: what a memory
    budget compares to choose what is recomputed.  Measured times differ."""

    @property
    def bytes(self) -> int:
        """The bytes that are held only for the backward."""
        return sum(each.bytes for each in self.values if each.is_held)

    @property
    def peak(self) -> int | None:
        """The most bytes that all programs allocate, as predicted."""
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
        offloaded = sum(each.bytes for each in own if each.in_host_memory)
        where = f", and {in_bytes(offloaded)} in host memory," if offloaded else ""
        yield f"saved for the backward: {in_bytes(self.bytes)}{where} in {values}{besides}"
        for each in own[:MAX_SHOWN]:
            yield ""
            where = ", in host memory" if each.in_host_memory else ""
            yield f"  {in_bytes(each.bytes):>10}  {each.described}  {each.op}{where}"
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
        number = bisect_right(pair.starts, self.peak_step) - 1
        where = PROGRAMS[len(pair.programs)][min(number, len(pair.programs) - 1)]
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
            if each.is_held and each.source is not None:
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


def saved_values(
    function: Callable[..., object],
    *args: object,
    order: int = 1,
    options: Mapping[str, object] | None = None,
    **kwargs: object,
) -> MemoryReport:
    """What `function(*args, **kwargs)` saves for its derivative, and the memory that it needs.

    The function is captured and compiled, but not run.  The derivative is with respect to the
    tensors that require grad; if none does, to all floating-point arguments.

    `order`: how often the function is differentiated.  With 2, memory is that of the second
    derivative: a gradient with respect to the arguments that require grad (if none does, to all
    parameters) is differentiated again.  With 0, it is that of the function alone, which may
    itself compute derivatives.

    `options`: those of `torch.compile(backend="adjoint", options=...)`, such as a memory budget.

        >>> import torch, adjoint
        >>> x = torch.rand(4, requires_grad=True)
        >>> adjoint.saved_values(lambda x: x.exp().sum(), x).bytes
        16
    """
    if order not in (0, 1, 2):
        raise ValueError(f"order={order!r} is not legal; choose 0, 1 or 2")
    compiler = Compiler(replace(Options.parse(options or {}), progress=False))
    captured = compiler.captured_call(function, args, kwargs, False)
    graph_module = captured.graph_module
    rates = target_of(graph_module, compiler.options).rates
    if order == 0:
        whole = compiler.undifferentiated(graph_module)
        made = compiler.footprint_of(whole)
        chain = None if made is None else ChainFootprint((made,), ((None,) * len(made.inputs),))
        seconds = seconds_of(whole.graph, rates)
        return MemoryReport((), chain, _spans({}, chain), rates, seconds)
    wrt = _wrt(captured, args, kwargs)
    derivative = compiler.derivative(graph_module, wrt, segmented=True)
    if derivative is None:
        raise CaptureError(
            "the derivative of a function",
            "no result depends differentiably on its arguments",
            "pass tensors that require grad",
            location_of_function(function).source,
        )
    if order == 1:
        return report_of(derivative, compiler)
    first = _wrt_arguments(captured, args, kwargs) or wrt
    chain = second_derivative(compiler, derivative, wrt, first)
    return _report(derivative, chain, rates)


def report_of(derivative: Derivative, compiler: Compiler) -> MemoryReport:
    """What a derivative saves, and the memory of its programs."""
    rates = target_of(derivative.runs, compiler.options).rates
    return _report(derivative, compiler.footprint(derivative), rates)


def _report(derivative: Derivative, chain: ChainFootprint | None, rates: Rates) -> MemoryReport:
    values = explained(derivative)
    spans = _spans(_saved_slots(derivative, chain, values), chain)
    return MemoryReport(values, chain, spans, rates, seconds_of_pair(derivative, rates))


def _wrt_arguments(captured: CapturedProgram, args: object, kwargs: object) -> tuple[int, ...]:
    """Positions of the graph's inputs that are arguments and require grad."""
    given = [leaf for leaf in trees.leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    inputs = graph_inputs(captured.calling, captured.leaves(given))
    wanted = {id(each) for each in given if each.requires_grad}
    return tuple(place for place, each in enumerate(inputs) if id(each) in wanted)


def _wrt(captured: CapturedProgram, args: object, kwargs: object) -> tuple[int, ...]:
    """Positions of the graph's inputs to differentiate with respect to."""
    given = [leaf for leaf in trees.leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    inputs = graph_inputs(captured.calling, captured.leaves(given))
    tensors = [(place, each) for place, each in enumerate(inputs) if isinstance(each, torch.Tensor)]
    wanted = tuple(place for place, each in tensors if each.requires_grad)
    return wanted or tuple(
        place for place, each in tensors if each.dtype.is_floating_point or each.dtype.is_complex
    )


def _saved_slots(
    derivative: Derivative, chain: ChainFootprint | None, values: Iterable[SavedValue]
) -> dict[int, SavedValue]:
    """The saved values, by the slots of the forward program."""
    known = {each.name: each for each in values}
    found: dict[int, SavedValue] = {}
    if chain is not None:
        freed = {slot for program, slot in chain.last_reads() if program == 0}
        outputs = outputs_of(derivative.runs.graph)
        for slot, node in zip(chain.forward.outputs, outputs, strict=True):
            if slot in freed and node.name in known:
                found.setdefault(slot, known[node.name])
    return found


def _spans(saved: Mapping[int, SavedValue], chain: ChainFootprint | None) -> tuple[Span, ...]:
    """What is in memory, and when; `saved`: by the slots of the first program."""
    if chain is None:
        return ()
    found: list[Span] = []
    for number, block, first, last in chain.lifetimes(kept=False):
        value = saved.get(block.slot) if number == 0 else None
        if value is not None:
            found.append(Span("saved", value.op, value.source, block.bytes, first, last))
            continue
        kind = "temporary"
        if block.kind is SlotKind.OUTPUT:
            kind = "gradient" if number else "result"
        found.append(Span(kind, block.made_by, None, block.bytes, first, last))
    for start, program in zip(chain.starts, chain.programs, strict=False):
        for block in program.blocks:
            if block.kind is SlotKind.TEMPORARY:
                span = start + block.first, start + block.last
                found.append(Span("temporary", block.made_by, None, block.bytes, *span))
    return tuple(found)
