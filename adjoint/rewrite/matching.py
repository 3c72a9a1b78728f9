"""Matching: where in a graph a pattern matches, and what its wildcards are bound to."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from adjoint.graph.metadata import value_at
from adjoint.open_types import OpArgument
from adjoint.rewrite.patterns import (
    Call,
    Each,
    Match,
    OneOf,
    Rest,
    Size,
    Wildcard,
    belong_together,
    depth,
    is_replaceable,
    wildcards,
)
from adjoint.torch_private.operators import OpOverload, schema_arguments
from adjoint.torch_private.symbols import same_number


@dataclass(frozen=True)
class _Bindings:
    """What has been bound so far; extended by copying, so that alternatives can be tried."""

    values: dict[str, object] = field(default_factory=dict)
    nodes: dict[int, tuple[Call, fx.Node]] = field(default_factory=dict)

    def with_value(self, name: str, value: object) -> _Bindings | None:
        if name in self.values:
            return self if _same(self.values[name], value) else None
        return _Bindings({**self.values, name: value}, self.nodes)

    def with_node(self, pattern: Call, node: fx.Node) -> _Bindings:
        return _Bindings(self.values, {**self.nodes, id(pattern): (pattern, node)})


def match_at(patterns: Sequence[object], node: fx.Node) -> Iterator[Match]:
    """The matches in which `node` is the first output of the pattern."""
    for found in _match_outputs(patterns, node):
        roots = [_root_node(pattern, found) for pattern in patterns]
        match = Match(
            tuple(each for each in roots if each is not None),
            found.values,
            {each: None for _, each in found.nodes.values()},
            frozenset(n for n, each in enumerate(roots) if each is None),
        )
        if _is_legal(match, found):
            yield match


def _match_outputs(patterns: Sequence[object], node: fx.Node) -> Iterator[_Bindings]:
    def more(rest: Sequence[Call], found: _Bindings) -> Iterator[_Bindings]:
        if not rest:
            yield found
            return
        if _is_unused(rest[0], found):
            yield from more(rest[1:], found)
            return
        for candidate in _candidates(rest[0], found):
            for next_found in _match(rest[0], candidate, found):
                yield from more(rest[1:], next_found)

    further = [each for each in patterns[1:] if isinstance(each, Call)]
    for found in _match(patterns[0], node, _Bindings()):
        yield from more(further, found)


def _is_unused(pattern: Call, found: _Bindings) -> bool:
    """Whether an output is a result of an operator that is bound already, and nothing uses it."""
    if pattern.ops != (operator.getitem,):
        return False
    of, place = pattern.args
    known = found.nodes.get(id(of))
    return known is not None and not any(
        user.target is operator.getitem and user.args[1] == place for user in known[1].users
    )


def _candidates(pattern: Call, found: _Bindings) -> Iterator[fx.Node]:
    """Nodes that may be a further output: near users of what is bound already."""
    seen: set[fx.Node] = set()
    near = [each for _, each in found.nodes.values()]
    near += [each for each in found.values.values() if isinstance(each, fx.Node)]
    for _ in range(depth(pattern)):
        near = [user for each in near for user in each.users if user not in seen]
        seen.update(near)
        yield from (each for each in near if each.target in pattern.ops)


def _root_node(pattern: object, found: _Bindings) -> fx.Node | None:
    """The node of an output; None if nothing uses it."""
    for each in pattern.of if isinstance(pattern, OneOf) else (pattern,):
        if id(each) in found.nodes:
            return found.nodes[id(each)][1]
    return None


def _is_legal(match: Match, found: _Bindings) -> bool:
    if not all(map(is_replaceable, match.nodes)):
        return False
    if not all(belong_together(node, match.root) for node in match.nodes):
        return False
    return all(
        pattern.shared or node in match.roots or all(user in match.nodes for user in node.users)
        for pattern, node in found.nodes.values()
    )


def _match(pattern: object, value: object, found: _Bindings) -> Iterator[_Bindings]:
    """Each way in which `value` matches `pattern`, given what is bound already."""
    match pattern:
        case Wildcard():
            bound = found.with_value(pattern.name, value)
            if bound is not None and (pattern.where is None or pattern.where(value)):
                yield bound
        case Size():
            yield from _match_size(pattern, value, found)
        case Call():
            yield from _match_call(pattern, value, found)
        case OneOf():
            for each in pattern.of:
                yield from _match(each, value, found)
        case Each():
            yield from _match_each(pattern, value, found)
        case list() | tuple():
            if isinstance(value, (list, tuple)):
                yield from _match_all(pattern, value, found)
        case _:
            if _same(pattern, value):
                yield found


def _match_size(pattern: Size, value: object, found: _Bindings) -> Iterator[_Bindings]:
    number = number_of(value)
    if number is None:
        return
    known = found.values.get(pattern.name)
    if known is None:
        yield _Bindings({**found.values, pattern.name: number}, found.nodes)
    elif same_number(known, number):
        yield found


def _match_call(pattern: Call, node: object, found: _Bindings) -> Iterator[_Bindings]:
    if not isinstance(node, fx.Node) or node.op != "call_function":
        return
    known = found.nodes.get(id(pattern))
    if known is not None:
        if known[1] is node:
            yield found
        return
    if node.target not in pattern.ops:
        return
    if pattern.users is not None and len(node.users) != pattern.users:
        return
    if pattern.where is not None and not pattern.where(node):
        return
    found = found.with_node(pattern, node)
    given = arguments(node.target, node.args, node.kwargs)
    for args in _orders(pattern):
        yield from _match_arguments(node.target, args, pattern.kwargs, given, found)


def _may_be(pattern: Call, value: object) -> bool:
    """Whether `value` is a call of such an operator; most are not, and binding costs more."""
    return isinstance(value, fx.Node) and value.target in pattern.ops


def _orders(pattern: Call) -> Iterator[Sequence[object]]:
    yield pattern.args
    if pattern.commutes:
        first, second, *others = pattern.args
        yield (second, first, *others)


def _match_arguments(
    target: object,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    given: Mapping[object, object],
    found: _Bindings,
) -> Iterator[_Bindings]:
    """`given`: the arguments of a node by name."""
    last = args[-1] if args else None
    is_open = last is ... or isinstance(last, Rest)
    wanted = arguments(target, args[:-1] if is_open else args, kwargs, defaults=not is_open)
    if not (wanted.keys() <= given.keys() if is_open else wanted.keys() == given.keys()):
        return
    if any(isinstance(each, Call) and not _may_be(each, given[k]) for k, each in wanted.items()):
        return
    bound: _Bindings | None = found
    if isinstance(last, Rest):
        others = [value for name, value in given.items() if name not in wanted]
        bound = found.with_value(last.name, others)
    if bound is not None:
        yield from _match_pairs([(each, given[name]) for name, each in wanted.items()], bound)


def _match_all(
    patterns: Sequence[object], values: Sequence[object], found: _Bindings
) -> Iterator[_Bindings]:
    if patterns and isinstance(patterns[-1], Rest):
        head = len(patterns) - 1
        if len(values) >= head:
            bound = found.with_value(patterns[-1].name, list(values[head:]))
            if bound is not None:
                yield from _match_pairs(list(zip(patterns, values[:head], strict=False)), bound)
        return
    if len(patterns) == len(values):
        yield from _match_pairs(list(zip(patterns, values, strict=True)), found)


def _match_pairs(pairs: Sequence[tuple[object, object]], found: _Bindings) -> Iterator[_Bindings]:
    if not pairs:
        yield found
        return
    (pattern, value), *rest = pairs
    for next_found in _match(pattern, value, found):
        yield from _match_pairs(rest, next_found)


def _match_each(pattern: Each, values: object, found: _Bindings) -> Iterator[_Bindings]:
    if not isinstance(values, (list, tuple)):
        return
    collected: dict[str, list[object]] = {name: [] for name in wildcards(pattern.of)}
    nodes = dict(found.nodes)
    for place, value in enumerate(values):
        fresh = _Bindings({}, {})
        inner = next(_match(pattern.of, value, fresh), None)
        if inner is None:
            return
        for name, each in inner.values.items():
            collected.setdefault(name, []).append(each)
        for call_pattern, node in inner.nodes.values():
            nodes[hash((id(call_pattern), place))] = (call_pattern, node)
    bound: _Bindings | None = _Bindings(found.values, nodes)
    for name, several in collected.items():
        bound = None if bound is None else bound.with_value(name, several)
    if bound is not None:
        yield bound


def arguments(
    target: object, args: Sequence[object], kwargs: Mapping[str, object], defaults: bool = True
) -> Mapping[OpArgument, OpArgument]:
    """The arguments of a call by name, with defaults; by position if the target has no schema."""
    if not isinstance(target, OpOverload):
        return dict([*enumerate(args), *kwargs.items()])
    return schema_arguments(target, args, kwargs, defaults)


def number_of(argument: object) -> object:
    """A size among the arguments of a node: an integer, or a symbolic one that a node computes.

    None if the argument is something else.
    """
    value = value_at(argument)
    is_number = isinstance(value, (int, torch.SymInt)) and not isinstance(value, bool)
    return value if is_number else None


def _same(one: object, other: object) -> bool:
    """Whether two arguments are the same: nodes by identity, constants by type and value."""
    if isinstance(one, fx.Node) or isinstance(other, fx.Node):
        return one is other
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, float):
        return repr(one) == repr(other)
    return type(one) is type(other) and bool(one == other)
