"""The counters of Dynamo and its backends, by topic: `torch._dynamo.utils.counters`."""

from __future__ import annotations

from torch._dynamo.utils import counters
from typing_extensions import assert_never

from adjoint.observing import Compilation, Event, Fallback, Sighting

# What adjoint counts is under this topic, as what Inductor counts is under its own.
TOPIC = "adjoint"


def counted(event: Event) -> None:
    """Count an event: stages and passes by name, rules by how often they were applied."""
    ours = counters[TOPIC]
    match event:
        case Sighting(stage, matches=matches):
            ours[stage] += 1
            for rule, times in matches.items():
                ours[f"{stage}: {rule}"] += times
        case Fallback():
            ours["fallbacks"] += 1
        case Compilation(reason=reason):
            ours["recompilations" if reason else "compilations"] += 1
        case _:
            assert_never(event)
