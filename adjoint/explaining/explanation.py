"""`adjoint.explain`: what the compiler made of a function, and how fast it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from typing_extensions import assert_never

from adjoint.atlas.artefacts import Artefacts, GraphHistory
from adjoint.compiler import Compiler
from adjoint.errors import SourceLine
from adjoint.explaining import data, text
from adjoint.explaining.calling import call
from adjoint.explaining.measuring import Timing, measured
from adjoint.explaining.page import page
from adjoint.graph.derivative import Derivative
from adjoint.kernels import CompiledKernels
from adjoint.memory.report import MemoryReport, report_of
from adjoint.observing import Compilation, Event, Fallback, Sighting, watching
from adjoint.open_types import FromText
from adjoint.options import Options, options_given
from adjoint.runtime.plans.program import PlanProgram
from adjoint.runtime.plans.tapping import TappedProgram
from adjoint.target import Rates
from adjoint.targets import target_on
from adjoint.transforms.reachable import Transformed


@dataclass(frozen=True)
class StageTime:
    """A stage or pass, and how long it took."""

    stage: str
    order: int
    seconds: float


@dataclass(frozen=True)
class Explanation:
    """What the compiler made of a function.

    `print(explanation)` is for a terminal, `explanation.save("report.html")` a page for a browser,
    `explanation.data()` the same as plain data.

        >>> import torch, adjoint
        >>> adjoint.explain(lambda x: x.sin(), torch.rand(8), order=0).timings[0].name
        'sin'
    """

    function: str
    order: int
    """How often it was differentiated."""
    stages: tuple[StageTime, ...]
    graphs: tuple[GraphHistory, ...]
    """Every graph of every order: its text, the passes that changed it, kernels, library calls."""
    timings: tuple[Timing, ...]
    """What each kernel and library call took, measured alone on the data of the call."""
    memory: MemoryReport | None
    """Saved values and memory over time; None: nothing was differentiated."""
    fallbacks: tuple[Fallback, ...]
    compilations: tuple[Compilation, ...]
    """Functions that were compiled, and why if it was not for the first time."""
    cuda_graphs: tuple[str, ...] = ()
    """For each program on a GPU that never replays a CUDA graph, the reason."""
    rates: Rates | None = None
    """The nominal rates of the machine."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The user's source files that are named."""

    def __str__(self) -> str:
        return text.written(self)

    def data(self) -> dict[str, FromText]:
        """Everything as dictionaries, lists, texts and numbers."""
        return data.of_explanation(self)

    def json(self) -> str:
        """The data as JSON."""
        return json.dumps(self.data(), indent=1)

    def html(self) -> str:
        """One self-contained page."""
        return page(self.data())

    def save(self, path: str | Path) -> None:
        """Write it to a file: `.html`, `.json`, or text."""
        ending = Path(path).suffix
        written = {".html": self.html, ".json": self.json}.get(ending, self.__str__)()
        Path(path).write_text(written, encoding="utf-8")

    def lines(self) -> list[SourceLine]:
        """The user's lines, in order."""
        found = {
            value.line
            for graph in self.graphs
            for value in graph.first.values
            if value.line is not None
        }
        return sorted(found, key=lambda each: (each.file, each.line))


class Observation:
    """An observer that keeps what an explanation needs, and measures programs as they run."""

    def __init__(self, options: Options, measures: bool = True) -> None:
        self.artefacts = Artefacts()
        self.stages: list[StageTime] = []
        self.timings: list[Timing] = []
        self.fallbacks: list[Fallback] = []
        self.compilations: list[Compilation] = []
        self.cuda_graphs: list[str] = []
        self.derivative: Derivative | None = None
        self.rates: Rates | None = None
        self._options = options
        self._measures = measures
        self._kernels: CompiledKernels | None = None
        self._measured: set[PlanProgram] = set()

    def __call__(self, sighting: Sighting) -> None:
        self.stages.append(StageTime(sighting.stage, sighting.order, sighting.seconds))
        self.artefacts(sighting)
        match sighting.value:
            case CompiledKernels() as kernels:
                self._kernels = kernels
            case Derivative() as derivative if sighting.order == 1 and self.derivative is None:
                self.derivative = derivative

    def watch(self, event: Event) -> None:
        """Note what those who watch the process are told."""
        match event:
            case Fallback():
                self.fallbacks.append(event)
            case Compilation():
                self.compilations.append(event)
            case Sighting():
                pass
            case _:
                assert_never(event)

    def running(self, program: PlanProgram, order: int) -> PlanProgram:
        """Measure the program in its first call."""
        kernels = self._kernels
        assert kernels is not None, "a program is loaded after its kernels are compiled"
        graph = self.artefacts.latest
        flops = {} if graph is None else {v.name: v.flops for v in graph.last.values}
        target = target_on(program.device, self._options)
        self.rates = self.rates or target.rates
        why = getattr(getattr(program, "cuda_graphs", None), "why", "")
        if why:
            self.cuda_graphs.append(why)

        def tap(program: PlanProgram, inputs: list[object]) -> object:
            if not self._measures or program in self._measured:
                return program(inputs)
            self._measured.add(program)
            copies = [_copied(each) for each in inputs]
            results = program(inputs)
            records = self.artefacts.of_launch
            self.timings += measured(program, kernels, target, copies, order, records, flops)
            return results

        return TappedProgram(program, tap)

    def explanation(self, function: str, order: int) -> Explanation:
        """What was seen."""
        memory = None
        if self.derivative is not None:
            memory = report_of(self.derivative, Compiler(Options(progress=False)))
        graphs = tuple(self.artefacts.graphs)
        return Explanation(
            function,
            order,
            tuple(self.stages),
            graphs,
            tuple(self.timings),
            memory,
            tuple(self.fallbacks),
            tuple(self.compilations),
            tuple(dict.fromkeys(self.cuda_graphs)),
            self.rates,
            files_of(graphs),
        )


def explain(
    function: Callable[..., object],
    *args: object,
    order: int | None = None,
    dynamic: bool = False,
    options: Mapping[str, object] | Options | None = None,
    **kwargs: object,
) -> Explanation:
    """What the compiler makes of `function(*args, **kwargs)` and its derivatives.

    The function is compiled anew, called, and its results are differentiated `order` times (once;
    a transform such as `adjoint.grad(f)` not at all).  Each kernel is measured.  Arguments are
    copied, and what was compiled before stays.  `function` may be a function, a module, what
    `torch.compile` returns, or a transform.  `dynamic`: sizes are symbols.

        >>> import torch, adjoint
        >>> explanation = adjoint.explain(lambda x: x.sin().square().sum(), torch.rand(8))
        >>> [graph.role for graph in explanation.graphs]
        ['captured', 'joint', 'forward', 'backward']
    """
    parsed = options_given(options)
    if order is None:
        given: object = function
        order = 0 if isinstance(given, Transformed) else 1
    observation = Observation(Options.parse(parsed))
    with watching(observation.watch):
        found = call(observation, function, args, kwargs, order, parsed, dynamic)
    return observation.explanation(_name(function), len(found) - 1)


def _name(function: object) -> str:
    inner = getattr(function, "_orig_mod", function)
    return str(getattr(inner, "__qualname__", type(inner).__name__))


def _copied(value: object) -> object:
    return value.detach().clone() if hasattr(value, "detach") else value


def files_of(graphs: tuple[GraphHistory, ...]) -> dict[str, str]:
    """The source of the files that lines of the graphs are in."""
    names = {
        value.line.file
        for graph in graphs
        for value in graph.first.values
        if value.line is not None
    }
    found: dict[str, str] = {}
    for name in sorted(names):
        path = Path(name)
        if path.is_file():
            found[name] = path.read_text(encoding="utf-8", errors="replace")
    return found
