"""A pass: a named function from graph to graph.

The compiler runs passes at four places, in the order of the tuples in `pipeline.py`:

* `primal` - on the program, before it is differentiated, or before it runs if it is not;
* `joint` - on the joint graph of a derivative, before it is split into forward and backward graph;
* `post` - on a graph that is about to be run, whatever it is part of;
* `lowering` - on the same graph right before it is lowered to kernels.

A pass may change the graph that it is given, and returns it or another one (a pass of ours at
`post`, where the graph may be differentiated later, returns another one).  What it returns must
compute the same, have the same inputs and outputs, and be a valid graph: `graph/verify.py` checks
that after each pass when the option `verify` is set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Literal, Protocol, TypeAlias, get_args

from torch import fx

Place: TypeAlias = Literal["primal", "joint", "post", "lowering"]

Run: TypeAlias = Callable[[fx.GraphModule], fx.GraphModule]


class Described(Protocol):
    """What `adjoint passes` prints of a rule."""

    @property
    def name(self) -> str: ...
    @property
    def meaning(self) -> str: ...


@dataclass(frozen=True)
class Pass:
    """A named function from graph to graph, and where it runs.

    >>> import adjoint
    >>> adjoint.graph_pass("leave-alone")(lambda graph_module: graph_module).name
    'leave-alone'
    """

    name: str
    run: Run
    place: Place = "post"
    after: str | None = None
    """The name of the pass that it comes after; None: it comes last, but first at `primal`, where
    it sees the program as it was written."""
    rules: tuple[Described, ...] = field(default=(), compare=False, repr=False)
    """The rules that it applies, if it is made of rules."""
    defined_by: tuple[Callable[..., object], ...] = field(default=(), compare=False, repr=False)
    """The user's functions that say what it does; without any, `run` does."""

    def __post_init__(self) -> None:
        if self.place not in get_args(Place):
            known = ", ".join(map(repr, get_args(Place)))
            raise ValueError(
                f"pass {self.name!r} asks for the place {self.place!r}; choose from: {known}"
            )

    @property
    def identity(self) -> str:
        """Equal for passes that do the same, in any process: name, place, and a digest of its code.

        It is no fact of cache entries, because functions with equal code may do different things:
        with passes of the user neither derivatives nor programs are cached.
        """
        digest = hashlib.sha256()
        for function in self.defined_by or (self.run,):
            for part in _code_parts(function):
                digest.update(part.encode())
        return f"{self.name}@{self.place}:{self.after or ''}:{digest.hexdigest()[:16]}"

    def __call__(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        return self.run(graph_module)


def graph_pass(name: str, place: Place = "post", after: str | None = None) -> Callable[[Run], Pass]:
    """Make a pass of a function: `@graph_pass("merge-views", "joint")`.

    >>> import torch, adjoint
    >>> @adjoint.graph_pass("count", "primal")
    ... def count(graph_module):
    ...     print(len(graph_module.graph.nodes), "nodes")
    ...     return graph_module
    >>> adjoint.compile(lambda x: x.sin().cos(), passes=[count])(torch.zeros(1))
    4 nodes
    tensor([1.])
    """
    return lambda run: Pass(name, run, place, after)


def extended(pipeline: Sequence[Pass], place: Place, more: Iterable[Pass]) -> tuple[Pass, ...]:
    """`pipeline`, which runs at `place`, with the passes of `more` for this place inserted."""
    passes = list(pipeline)
    first = 0
    for each in more:
        if each.place != place:
            continue
        names = [known.name for known in passes]
        if each.name in names:
            raise ValueError(f"there are two passes {each.name!r} at {place!r}")
        if each.after is not None and each.after not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise ValueError(
                f"pass {each.name!r} comes after {each.after!r}, which does not run at {place!r}; "
                f"choose from: {known}"
            )
        if each.after is not None:
            # After the last of that name: a pass may run more than once.
            index = _last(names, each.after) + 1
        elif place == "primal":
            index, first = first, first + 1
        else:
            index = len(passes)
        passes.insert(index, each)
    return tuple(passes)


def _last(names: Sequence[str], name: str) -> int:
    return len(names) - 1 - list(reversed(names)).index(name)


def _code_parts(function: object) -> Iterator[str]:
    """What a function does, as text: its bytecode, constants, names, defaults and closure."""
    if isinstance(function, partial):
        yield repr((function.args, sorted(function.keywords.items())))
        yield from _code_parts(function.func)
        return
    code = getattr(function, "__code__", None)
    if code is None:
        yield f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
        called = vars(type(function)).get("__call__")
        if getattr(called, "__code__", None) is not None:
            yield from _code_parts(called)
        return
    yield from _parts_of_code(code)
    yield repr((getattr(function, "__defaults__", None), getattr(function, "__kwdefaults__", None)))
    for cell in getattr(function, "__closure__", None) or ():
        held = cell.cell_contents
        if callable(held) and getattr(held, "__code__", None) not in (None, code):
            yield from _code_parts(held)
        elif isinstance(held, str | int | float | bool | bytes | None):
            yield repr(held)
        else:
            yield type(held).__qualname__


def _parts_of_code(code: CodeType) -> Iterator[str]:
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _parts_of_code(constant)
        else:
            yield repr(constant)
