"""Finding the pass, and in it the match, that changes a result: what `adjoint bisect` does.

The function runs without any pass, and then with one pass more each time, in the order in which
passes run.  The first that changes a value or a gradient by more than rounding is at fault.  If it
is made of rules, it runs again with fewer matches, until the one at fault is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from adjoint.observing import unobserved
from adjoint.passes import Pass
from adjoint.rewrite.engine import limited
from adjoint.stages import StageLog, observe

# Relative to 1 + |value|.  Sums in another order round otherwise.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 1e-2}


@dataclass(frozen=True)
class Finding:
    """What changes a result."""

    graph_pass: str
    difference: float
    match: str | None = None
    """The rule, the node and the user's line, if the pass is made of rules."""
    number: int = 0
    """Which of the matches of the pass it is."""

    def __str__(self) -> str:
        what = f"the pass {self.graph_pass!r} changes a result by {self.difference:.2g}"
        return what if self.match is None else f"{what}: match {self.number}, {self.match}"


class Bisection:
    """One search."""

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: dict[str, Any],
        order: int = 1,
        passes: Sequence[Pass] = (),
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.order, self.passes = order, list(passes)

    def find(self) -> Finding | None:
        """The first pass that changes a result; None if none does."""
        log = StageLog()
        everything = self._results((), log)
        names = log.passes
        without = self._results(names)
        if _difference(everything, without) is None:
            return None
        for place, name in enumerate(names):
            changed = _difference(self._results(names[place + 1 :]), without)
            if changed is not None:
                return self._match(name, names[place + 1 :], without, changed)
        return None

    def _match(
        self, name: str, skipped: Sequence[str], without: Sequence[Any], changed: float
    ) -> Finding:
        with limited(name, None) as limit:
            self._results(skipped)
        low, high = 0, limit.count
        if not high:
            return Finding(name, changed)
        # With `low` matches the result is right, with `high` it is wrong.
        shown = ""
        while high - low > 1:
            middle = (low + high) // 2
            with limited(name, middle):
                is_wrong = _difference(self._results(skipped), without) is not None
            low, high = (low, middle) if is_wrong else (middle, high)
        with limited(name, high) as limit:
            self._results(skipped)
            shown = limit.last
        return Finding(name, changed, shown, high)

    def _results(self, skipped: Sequence[str], log: StageLog | None = None) -> list[Any]:
        options = {"skip_passes": tuple(skipped), "passes": self.passes}
        torch.manual_seed(0)
        observer = log or unobserved
        return observe(observer, self.function, self.args, self.kwargs, self.order, options=options)


def _difference(one: Sequence[Any], other: Sequence[Any]) -> float | None:
    """How far two runs are apart, relative to 1 + |value|; None if rounding explains it."""
    worst = 0.0
    for mine, theirs in zip(one, other, strict=True):
        if not isinstance(mine, torch.Tensor) or not isinstance(theirs, torch.Tensor):
            if mine is not theirs:
                return float("inf")
            continue
        worst = max(worst, _apart(mine.detach(), theirs.detach()))
    return worst or None


def _apart(one: torch.Tensor, other: torch.Tensor) -> float:
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if not one.is_floating_point():
        return 0.0 if torch.equal(one, other) else float("inf")
    same = (one == other) | (one.isnan() & other.isnan())
    if not bool((one.isfinite() == other.isfinite()).all()):
        return float("inf")
    distance = torch.where(same, 0.0, (one - other).abs().double() / (1 + other.abs().double()))
    worst = float(distance.max()) if distance.numel() else 0.0
    return worst if worst > TOLERANCE.get(one.dtype, 1e-4) else 0.0
