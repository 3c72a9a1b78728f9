"""`python -m demo`: train, compare, draw.

Exits with an error where a gradient is not eager's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from torch import nn

from demo import burgers, morse, picture
from demo.training import SYSTEMS, Lesson, Pupil, gradient_error, train

TOLERANCE = 1e-9
TIMES = (0.0, 0.25, 1.0)


@dataclass(frozen=True)
class Outcome:
    """A lesson learned: by whom, how far from the truth, how far from eager's gradients."""

    lesson: Lesson
    pupils: list[Pupil]
    truth: dict[str, float]
    """By system: the relative error against what the network should have learned."""
    gradient_error: float

    @property
    def agrees(self) -> bool:
        # A NaN does not.
        return self.gradient_error <= TOLERANCE


def main(arguments: Sequence[str]) -> int:
    """Run the demo; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--steps", type=int, help="of each network on each system")
    parser.add_argument("--picture", type=Path, default=Path("build", "demo.svg"))
    parsed = parser.parse_args(arguments)
    console = Console()
    start = time.perf_counter()
    outcomes = [
        learned(morse.lesson(parsed.steps or morse.STEPS), morse.force_error, console),
        learned(burgers.lesson(parsed.steps or burgers.STEPS), burgers.solution_error, console),
    ]
    for outcome in outcomes:
        console.print(rendered(outcome))
    parsed.picture.parent.mkdir(parents=True, exist_ok=True)
    parsed.picture.write_text(drawn(outcomes))
    seconds = time.perf_counter() - start
    console.print(f"picture: {parsed.picture}; {seconds:.0f} s, {torch.get_num_threads()} threads")
    return verdict(outcomes, console)


def learned(lesson: Lesson, truth: Callable[[nn.Module], float], console: Console) -> Outcome:
    """Train on every system with a live line, then compare gradients."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        bar = progress.add_task(lesson.name, total=lesson.steps * len(SYSTEMS))

        def saw(pupils: list[Pupil], one: Pupil) -> None:
            done = sum(len(pupil.losses) for pupil in pupils)
            progress.update(bar, completed=done, description=live(lesson, pupils, one))

        pupils = train(lesson, saw)
        progress.update(bar, description=f"{lesson.name}: gradients in float64")
        error = gradient_error(lesson, pupils[-1].model, SYSTEMS["adjoint"])
    return Outcome(lesson, pupils, {one.system: truth(one.model) for one in pupils}, error)


def live(lesson: Lesson, pupils: list[Pupil], one: Pupil) -> str:
    """What is happening now, and how fast both have been."""
    if not one.losses:
        return f"{lesson.name}: first step of {one.system}"
    speeds = ", ".join(f"{p.system} {p.speed:.0f}/s" for p in pupils if len(p.seconds) > 1)
    return f"{lesson.name}: {speeds}, loss {one.losses[-1]:.1e}"


def rendered(outcome: Outcome) -> Table:
    """A row for each system, and the comparison of gradients below."""
    table = Table(
        title=f"{outcome.lesson.name}, {outcome.lesson.steps} steps",
        title_justify="left",
        caption=f"largest gradient error in float64: {outcome.gradient_error:.1e} of eager's",
        caption_justify="left",
    )
    table.add_column("system")
    for name in ("loss", "error", "steps/s", "x eager", "first step s", "total s"):
        table.add_column(name, justify="right")
    eager = outcome.pupils[0]
    for one in outcome.pupils:
        table.add_row(
            one.system,
            f"{one.losses[0]:.2g} -> {one.losses[-1]:.2g}",
            f"{outcome.truth[one.system]:.2%}",
            f"{one.speed:.1f}",
            f"{one.speed / eager.speed:.2f}",
            f"{one.cold:.2f}",
            f"{sum(one.seconds):.1f}",
        )
    return table


def drawn(outcomes: Sequence[Outcome]) -> str:
    """Losses, and the wave that adjoint's network has learned."""
    wave = outcomes[-1].pupils[-1].model

    def exact(t: float) -> list[picture.Point]:
        points = burgers.line(t)
        return list(zip(points[:, 0].tolist(), burgers.exact(points).tolist(), strict=True))

    def found(t: float) -> list[picture.Point]:
        points = burgers.line(t)
        with torch.no_grad():
            values = wave(points.float())
        return list(zip(points[:, 0].tolist(), values.tolist(), strict=True))

    losses = [picture.loss_panel(outcome.lesson, outcome.pupils) for outcome in outcomes]
    return picture.svg([*losses, picture.wave_panel(TIMES, exact, found)])


def verdict(outcomes: Sequence[Outcome], console: Console) -> int:
    """The exit status, and a word on every lesson whose gradients are not eager's."""
    wrong = [outcome for outcome in outcomes if not outcome.agrees]
    for outcome in wrong:
        console.print(
            f"WRONG GRADIENTS: {outcome.lesson.name} differs from eager by "
            f"{outcome.gradient_error:.1e}, more than {TOLERANCE:.0e}",
            style="bold red",
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
