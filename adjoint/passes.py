"""A pass: a named function from graph to graph.

The compiler runs passes at three places, in the order of the tuples in `pipeline.py`:

* `joint` - on the joint graph of a derivative, before it is split into forward and backward graph;
* `post` - on a graph that is about to be run, whatever it is part of;
* `lowering` - on the same graph right before it is lowered to kernels.

A pass may change the graph that it is given, and returns it or another one (a pass of ours at
`post`, where the graph may be differentiated later, returns another one).  What it returns must
compute the same, have the same inputs and outputs, and be a valid graph: `graph/verify.py` checks
that after each pass when the option `verify` is set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from torch import fx

Place: TypeAlias = Literal["joint", "post", "lowering"]

Run: TypeAlias = Callable[[fx.GraphModule], fx.GraphModule]


@dataclass(frozen=True)
class Pass:
    """A named function from graph to graph, and where it runs."""

    name: str
    run: Run
    place: Place = "post"
    after: str | None = None
    """The name of the pass that it comes after; None: it comes last."""

    def __post_init__(self) -> None:
        if self.place not in get_args(Place):
            known = ", ".join(map(repr, get_args(Place)))
            raise ValueError(
                f"pass {self.name!r} asks for {self.place!r}, which is none of {known}"
            )

    def __call__(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        return self.run(graph_module)


def graph_pass(name: str, place: Place = "post", after: str | None = None) -> Callable[[Run], Pass]:
    """Make a pass of a function: `@graph_pass("merge-views", "joint")`."""
    return lambda run: Pass(name, run, place, after)


def extended(pipeline: Sequence[Pass], place: Place, more: Iterable[Pass]) -> tuple[Pass, ...]:
    """`pipeline`, which runs at `place`, with the passes of `more` for this place inserted."""
    passes = list(pipeline)
    for each in more:
        if each.place != place:
            continue
        names = [known.name for known in passes]
        if each.name in names:
            raise ValueError(f"there are two passes {each.name!r} at {place!r}")
        if each.after is not None and each.after not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise ValueError(
                f"pass {each.name!r} comes after {each.after!r}, which is none of those at "
                f"{place!r}: {known}"
            )
        # After the last of that name: a pass may run more than once.
        index = len(passes) if each.after is None else _last(names, each.after) + 1
        passes.insert(index, each)
    return tuple(passes)


def _last(names: Sequence[str], name: str) -> int:
    return len(names) - 1 - list(reversed(names)).index(name)
