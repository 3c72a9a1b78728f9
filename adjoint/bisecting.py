"""Finding the pass, and in it the match, that changes a result: what `adjoint bisect` does.

The function runs without any pass, and then with one pass more each time, in the order in which
passes run.  The first that changes a value or a gradient by more than rounding is at fault.  If it
is made of rules, it runs again with fewer matches, until the one at fault is found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from adjoint.checking.comparing import Mismatch, compare
from adjoint.checking.narrowing import guilty_match, guilty_pass
from adjoint.observing import unobserved
from adjoint.passes import Pass
from adjoint.stages import StageLog, observe


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
        function: Callable[..., object],
        args: Sequence[object],
        kwargs: dict[str, object],
        order: int = 1,
        passes: Sequence[Pass] = (),
        dynamic: bool = False,
    ) -> None:
        self.function, self.args, self.kwargs = function, args, kwargs
        self.order, self.passes, self.dynamic = order, list(passes), dynamic

    def find(self) -> Finding | None:
        """The first pass that changes a result; None if none does."""
        log = StageLog()
        self._results((), log)
        without = self._results(log.passes)

        def changed(skipped: Sequence[str]) -> Mismatch | None:
            return compare(self._results(skipped), without)

        found = guilty_pass(log.passes, lambda skipped: changed(skipped) is not None)
        if found is None:
            return None
        name, skipped = found
        mismatch = changed(skipped)
        match = guilty_match(name, lambda: changed(skipped) is not None)
        difference = 0.0 if mismatch is None else mismatch.difference
        return (
            Finding(name, difference) if match is None else Finding(name, difference, *match[::-1])
        )

    def _results(self, skipped: Sequence[str], log: StageLog | None = None) -> list[object]:
        options = {"skip_passes": tuple(skipped), "passes": self.passes}
        torch.manual_seed(0)
        given = (self.function, self.args, self.kwargs, self.order, self.dynamic)
        results = observe(log or unobserved, *given, options, writes=True)
        return [each for found in results for each in found]
