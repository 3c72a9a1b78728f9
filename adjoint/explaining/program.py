"""`adjoint report`: watches a whole program, every compilation and the time that each took."""

from __future__ import annotations

import json
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from adjoint.atlas.artefacts import Artefacts
from adjoint.explaining import data, text
from adjoint.explaining.explanation import Explanation, StageTime, files_of
from adjoint.explaining.page import page
from adjoint.observing import Compilation, Event, Fallback, Sighting, watching
from adjoint.open_types import FromText
from adjoint.quantities import counted, duration
from adjoint.source import users_traceback

# The most graphs that the page of a program shows: one that compiles in each step has no bound.
MAX_GRAPHS = 200


@dataclass(frozen=True)
class Cost:
    """A compilation, with the time of what was compiled later because of it: its derivatives."""

    compilation: Compilation
    seconds: float


@dataclass
class ProgramReport:
    """What the compiler did while a program ran."""

    script: str
    seconds: float = 0.0
    """How long the program ran, compiling included."""
    failure: str = ""
    """The exception that the program ended with, if any."""
    traceback: str = ""
    """The lines of the program that raised it."""
    fallbacks: list[Fallback] = field(default_factory=list)
    _events: list[tuple[float, Sighting | Compilation]] = field(default_factory=list)
    """With the time at which each ended; sightings without what was made."""
    _artefacts: dict[str, Artefacts] = field(default_factory=dict)

    def watch(self, event: Event) -> None:
        """Note an event."""
        match event:
            case Fallback():
                self.fallbacks.append(event)
            case Compilation():
                self._events.append((time.perf_counter(), event))
            case Sighting():
                artefacts = self._artefacts.setdefault(event.function, Artefacts())
                if sum(len(each.graphs) for each in self._artefacts.values()) < MAX_GRAPHS:
                    artefacts(event)
                bare = Sighting(
                    event.stage, event.order, None, event.seconds, function=event.function
                )
                self._events.append((time.perf_counter(), bare))

    @property
    def compilations(self) -> list[Compilation]:
        return [event for _, event in self._events if isinstance(event, Compilation)]

    @property
    def stages(self) -> list[StageTime]:
        return [
            StageTime(event.stage, event.order, event.seconds)
            for _, event in self._events
            if isinstance(event, Sighting)
        ]

    def costs(self) -> list[Cost]:
        """Every compilation, with the stages that ran after it for the same function."""
        found: list[tuple[float, Compilation]] = [
            (end, event) for end, event in self._events if isinstance(event, Compilation)
        ]
        seconds = [compilation.seconds for _, compilation in found]
        for end, event in self._events:
            if not isinstance(event, Sighting):
                continue
            own = [
                place for place, (_, each) in enumerate(found) if each.function == event.function
            ]
            is_inside = any(found[p][0] - found[p][1].seconds <= end <= found[p][0] for p in own)
            before = [place for place in own if found[place][0] <= end]
            if not is_inside and before:
                seconds[before[-1]] += event.seconds
        return [Cost(each, time) for (_, each), time in zip(found, seconds, strict=True)]

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        costs = self.costs()
        again = [each for each in costs if each.compilation.reason]
        lost = sum(each.seconds for each in costs)
        yield (
            f"{self.script} ran {self.seconds:.2f} s, of which {lost:.2f} s compiling: "
            f"{counted(len(costs), 'compilation')}, {len(again)} of them again, "
            f"{sum(each.seconds for each in again):.2f} s"
        )
        if self.failure:
            yield f"it ended with {self.failure}"
        if self.traceback:
            yield self.traceback
        by_function: dict[str, list[Cost]] = {}
        for each in costs:
            by_function.setdefault(each.compilation.function, []).append(each)
        ordered = sorted(by_function.items(), key=lambda pair: -sum(c.seconds for c in pair[1]))
        for function, own in ordered:
            total = sum(each.seconds for each in own)
            line = own[0].compilation.source
            where = f" ({line.file}:{line.line})" if line is not None else ""
            times = counted(len(own), "time")
            yield ""
            yield f"{function}{where}: compiled {times}, {duration(total)}"
            for each in own:
                reason = each.compilation.reason
                why = f"again, because {reason}" if reason else "first time"
                yield f"  {duration(each.seconds):>9}  {each.compilation.what}, {why}"
        if self.fallbacks:
            yield ""
            yield "what fell back to eager"
            yield from text.fallbacks(self.fallbacks)

    def data(self) -> dict[str, FromText]:
        """Everything as dictionaries, lists, texts and numbers."""
        graphs = tuple(g for each in self._artefacts.values() for g in each.graphs)
        explanation = Explanation(
            Path(self.script).name,
            max((graph.order for graph in graphs), default=0),
            tuple(self.stages),
            graphs,
            (),
            None,
            tuple(self.fallbacks),
            tuple(self.compilations),
            files=files_of(graphs),
        )
        found = data.of_explanation(explanation)
        owners = [name for name, each in self._artefacts.items() for _ in each.graphs]
        for graph, owner in zip(found["graphs"], owners, strict=True):
            graph["name"] = f"{owner}: {graph['name']}"
        for each, cost in zip(found["compilations"], self.costs(), strict=True):
            each["seconds"] = cost.seconds
        found["seconds"] = self.seconds
        return found

    def html(self) -> str:
        """One self-contained page."""
        return page(self.data())

    def save(self, path: str | Path) -> None:
        """Write it to a file: `.html`, `.json`, or text."""
        match Path(path).suffix:
            case ".html":
                written = self.html()
            case ".json":
                written = json.dumps(self.data(), indent=1)
            case _:
                written = str(self)
        Path(path).write_text(written, encoding="utf-8")


def watched_program(script: str, arguments: Sequence[str] = ()) -> ProgramReport:
    """Run a Python script as a program, and report what was compiled meanwhile."""
    report = ProgramReport(script)
    before, folder = sys.argv, str(Path(script).resolve().parent)
    sys.argv = [script, *arguments]
    sys.path.insert(0, folder)
    begun = time.perf_counter()
    try:
        with watching(report.watch):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            report.failure = f"exit status {end.code}"
    except Exception as error:  # noqa: BLE001 - The report is wanted then, too.
        report.failure = f"{type(error).__name__}: {error}"
        report.traceback = users_traceback(error)
    finally:
        report.seconds = time.perf_counter() - begun
        sys.argv = before
        sys.path.remove(folder)
    return report
