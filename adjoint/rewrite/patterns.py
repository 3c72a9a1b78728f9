"""Patterns: the part of a graph that a rule replaces, and the search for it.

    x, inner, outer = map(Wildcard, ("x", "inner", "outer"))
    call(aten.permute.default, call(aten.permute.default, x, inner, shared=True), outer)

matches a permutation of a permutation of anything.  In place of an argument a pattern has

* `Wildcard`: anything, by a name; the same name twice is the same value twice;
* `call(op, ...)`: the result of an operator; the same pattern object twice is the same node twice;
* `Size`: an integer, constant or symbolic;
* `one_of(...)`: the first of several patterns that matches;
* `Each(pattern)`: a list whose elements all match; `Rest(name)`: all arguments, or all elements of
  a list, from there on;
* anything else: a constant, equal in type and value (0.0 is not -0.0).

Arguments are compared by their names in the operator's schema, so it does not matter whether a call
passes them by position, by keyword, or leaves them to their defaults.  A pattern that ends in
`...` does not compare the arguments after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from torch import fx

from adjoint.graph.metadata import Mode, forward_mode_was_enabled, has_hooks, mode_of, region_of
from adjoint.graph.purity import draws, is_collective, is_impure
from adjoint.open_types import OpArgument, OpArguments
from adjoint.torch_private.operators import OpOverloadPacket

Guard: TypeAlias = Callable[[OpArgument], bool]


@dataclass(frozen=True, eq=False)
class Wildcard:
    """Anything, if `where` holds for it: a node, or a constant argument."""

    name: str
    where: Guard | None = None


@dataclass(frozen=True, eq=False)
class Size:
    """An integer, constant or symbolic; the same name twice is the same number twice."""

    name: str


@dataclass(frozen=True, eq=False)
class Rest:
    """All arguments, or all elements of a list, from here on."""

    name: str


@dataclass(frozen=True, eq=False)
class Each:
    """A list whose elements all match `of`; wildcards in it are bound to the list of what they
    match."""

    of: object


@dataclass(frozen=True, eq=False)
class OneOf:
    """The first of several patterns that matches."""

    of: tuple[object, ...]


@dataclass(frozen=True, eq=False)
class Call:
    """The result of an operator: in a pattern of any of `ops`, in a replacement of the only one."""

    ops: OpArguments
    args: tuple[object, ...] = ()
    kwargs: Mapping[str, object] = field(default_factory=dict)
    shared: bool = False
    """Whether the value may have users outside the match; it is computed as before for these."""
    users: int | None = None
    """The number of users it must have; None: any number."""
    commutes: bool = False
    """Whether the first two arguments may come in either order."""
    where: Guard | None = None
    """What has to hold for the node."""


Pattern: TypeAlias = Wildcard | Call | OneOf


def call(
    op: object,
    *args: object,
    shared: bool = False,
    users: int | None = None,
    commutes: bool = False,
    where: Guard | None = None,
    **kwargs: object,
) -> Call:
    """A call of `op`: one operator, all overloads of one, or any of several."""
    given = op if isinstance(op, tuple) else (op,)
    return Call(
        tuple(overload for each in given for overload in _overloads(each)),
        args,
        kwargs,
        shared,
        users,
        commutes,
        where,
    )


def one_of(*patterns: object) -> OneOf:
    return OneOf(patterns)


def _overloads(op: object) -> list[object]:
    if not isinstance(op, OpOverloadPacket):
        return [op]
    return [getattr(op, name) for name in op.overloads()]


class NoMatch(Exception):
    """What a rule looks at does not fit."""


@dataclass(frozen=True)
class Match:
    """A place where a pattern matches."""

    roots: tuple[fx.Node, ...]
    """The nodes of the outputs of the pattern that are used, which the rule replaces."""
    bound: Mapping[str, OpArgument]
    """What each wildcard matches."""
    nodes: dict[fx.Node, None] = field(default_factory=dict)
    """The nodes that the pattern matches, roots included, in the order they were found."""
    unused: frozenset[int] = frozenset()
    """The positions of outputs that nothing uses, such as the indices of a maximum."""

    @property
    def root(self) -> fx.Node:
        return self.roots[0]

    def absorb(
        self, node: object, *ops: object, shared: bool = False, drawn_anew: bool = False
    ) -> fx.Node:
        """`node`, a call of one of `ops`, as a part of the match.

        `NoMatch` if it is something else, or cannot be replaced together with the root.  For rules
        that walk through a graph by themselves.  `drawn_anew`: it may draw random numbers, because
        the replacement draws as often; nothing else that draws may be between it and the root.
        """
        if not isinstance(node, fx.Node) or node.op != "call_function" or node.target not in ops:
            raise NoMatch
        may_go = is_replaceable(node) or (drawn_anew and _is_last_draw(node, self.root))
        if not may_go or not belong_together(node, self.root):
            raise NoMatch
        if not shared and any(user not in self.nodes for user in node.users):
            raise NoMatch
        self.nodes[node] = None
        return node


def is_replaceable(node: fx.Node) -> bool:
    """Whether a rule may replace the node: it neither draws, nor communicates, nor has effects."""
    return not is_impure(node) and not is_collective(node)


def _is_last_draw(node: fx.Node, root: fx.Node) -> bool:
    """Whether a node that draws has no effects between itself and `root`, so that draws stay in
    order if the replacement of `root` draws in its place."""
    if not draws(node):
        return False
    between = node.next
    while between is not root:
        if not is_replaceable(between):
            return False
        between = between.next
    return True


def belong_together(one: fx.Node, other: fx.Node) -> bool:
    """Whether two nodes ran in one autograd mode and one checkpointed region.

    Only then a derivative flows through a replacement as it flowed through them.
    """
    return (
        mode_of(one) == mode_of(other)
        and region_of(one) == region_of(other)
        and forward_mode_was_enabled(one) == forward_mode_was_enabled(other)
        and not has_hooks(one)
        and not has_hooks(other)
    )


def can_return(node: fx.Node) -> bool:
    """Whether an existing value may take the place of `node`: `node` has the history that its
    arguments have."""
    return mode_of(node) == Mode() and forward_mode_was_enabled(node) and not has_hooks(node)


def depth(pattern: object) -> int:
    match pattern:
        case Call():
            inner = [*pattern.args, *pattern.kwargs.values()]
            return 1 + max(map(depth, inner), default=0)
        case OneOf():
            return max(map(depth, pattern.of), default=0)
        case Each():
            return depth(pattern.of)
        case list() | tuple():
            return max(map(depth, pattern), default=0)
        case _:
            return 0


def wildcards(pattern: object) -> list[str]:
    """The names that a match of `pattern` binds."""
    match pattern:
        case Wildcard() | Rest() | Size():
            return [pattern.name]
        case Call():
            inner: Sequence[object] = [*pattern.args, *pattern.kwargs.values()]
        case OneOf():
            # Only what every alternative binds is always bound.
            names = [wildcards(each) for each in pattern.of]
            first = names[0] if names else []
            return [name for name in first if all(name in each for each in names)]
        case Each():
            inner = [pattern.of]
        case list() | tuple():
            inner = pattern
        case _:
            inner = []
    return list(dict.fromkeys(name for each in inner for name in wildcards(each)))
