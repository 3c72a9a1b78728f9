"""Rules: a pattern, and what is put in its place.

An equation, if both sides are calls of operators:

    equation("merge-negations", neg(neg(x)), x)

A function of what the wildcards match, by their names, whose docstring is the equation.  It returns
the replacement, or None where the rule does not apply:

    @rewrites(call(aten.permute.default, call(aten.permute.default, x, inner, shared=True), outer))
    def merge_permutes(x, inner, outer):
        \"\"\"permute(permute(x, p), q) = permute(x, p[q])\"\"\"
        return call(aten.permute.default, x, [inner[axis] for axis in outer])

A replacement is a call of an operator, an existing value, or `Traced(function, args)`: what a torch
function computes, traced with the fake values of `args`.  `Edit` changes the root in place.  A rule
with several outputs returns a replacement for each.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from torch import fx

from adjoint.errors import RewriteError, SourceLine
from adjoint.failing import call_user_code
from adjoint.graph.purity import always_draws
from adjoint.open_types import Callee, UserFunction
from adjoint.rewrite.patterns import Call, Each, Match, OneOf, Rest, Size, Wildcard, wildcards
from adjoint.rewrite.recording import Untraceable
from adjoint.rewrite.tracing import TracedPattern, parameters_of, pattern_of
from adjoint.source import line_of_function, user_line
from adjoint.torch_private.operators import OpOverload, parameter_names


@dataclass(frozen=True, eq=False)
class Traced:
    """What `function(*args)` computes, traced with the fake values of its arguments."""

    function: UserFunction
    args: Sequence[object]


@dataclass(frozen=True, eq=False)
class Edit:
    """Another call in the place of the root, in the same node."""

    op: Callee
    args: Sequence[object]


Replacement: TypeAlias = Call | Wildcard | Traced | Edit | fx.Node


@dataclass(frozen=True, eq=False)
class Rule:
    """A pattern, with one entry for each output, and what is put in its place."""

    name: str
    patterns: tuple[object, ...]
    replacement: Callable[[Match], object]
    """The replacement at a match, one for each output; None if the rule does not apply there."""
    meaning: str = ""
    """The equation."""

    def __post_init__(self) -> None:
        for pattern in self.patterns:
            _check(self.name, pattern)
            if not isinstance(pattern, (Call, OneOf)) or not roots_of(pattern):
                raise malformed(self.name, "its pattern is not a call of an operator")


def roots_of(pattern: object) -> list[object]:
    """The operators that a match of `pattern` ends in; empty if it may end in anything."""
    match pattern:
        case Call():
            return list(pattern.ops)
        case OneOf():
            found = [roots_of(each) for each in pattern.of]
            return [op for ops in found for op in ops] if all(found) else []
        case _:
            return []


def name_of(function: Callable[..., object]) -> str:
    """The name of a rule or pass that is made of a function."""
    name: str = getattr(function, "__name__", type(function).__name__)
    return name.replace("_", "-").strip("-")


def rewrites(*patterns: object) -> Callable[[Callable[..., object]], Rule]:
    """Make a rule of a function from what wildcards match, by name, to a replacement.

    A parameter `match` receives the whole match.
    """

    def make(function: Callable[..., object]) -> Rule:
        name = name_of(function)
        known = {*(each for pattern in patterns for each in wildcards(pattern)), "match"}
        try:
            wanted = parameters_of(function)
        except Untraceable as error:
            raise malformed(name, str(error)) from None
        for each in wanted:
            if each not in known:
                raise malformed(name, f"its pattern has no wildcard {each!r}")

        def replacement(match: Match) -> object:
            given = {**match.bound, "match": match}
            return call_user_code(function, **{each: given[each] for each in wanted})

        return Rule(name, patterns, replacement, inspect.getdoc(function) or "")

    return make


def equation(name: str, pattern: object, replacement: object) -> Rule:
    """A rule whose two sides are written with the same wildcards."""
    rule = Rule(name, (pattern,), lambda match: replacement)
    missing = set(wildcards(replacement)) - set(wildcards(pattern))
    if missing:
        raise malformed(name, f"its pattern has no wildcard {missing.pop()!r}")
    return rule


def traced_rules(
    pattern: Callable[..., object],
    replacement: Callable[..., object],
    examples: Sequence[object],
    name: str,
) -> list[Rule]:
    """Rules that replace what one torch function does by what another, of the same parameters,
    does."""
    try:
        wanted = parameters_of(replacement)
    except Untraceable as error:
        raise malformed(name, f"its replacement: {error}", line_of_function(replacement)) from None
    try:
        found = pattern_of(pattern, examples)
    except Untraceable as error:
        raise malformed(name, str(error), line_of_function(pattern)) from None
    except Exception as error:
        summary = str(error).partition("\n")[0]
        why = f"its pattern raised {type(error).__name__}: {summary}"
        raise malformed(name, why, line_of_function(pattern)) from error
    for each in found:
        used = {place for output in each.outputs for place in wildcards(output)}
        for parameter in wanted:
            if parameter not in used:
                why = f"its pattern does not use a parameter {parameter!r}"
                raise malformed(name, why, line_of_function(replacement))
    if found[0].fixed:
        sizes = ", ".join(f"{each}.shape[{axis}]" for each, axis in sorted(found[0].fixed))
        warnings.warn(
            f"rule {name!r}: its pattern reads {sizes} as a number, as `math.sqrt` does, and "
            "matches only tensors with the sizes of the examples there",
            stacklevel=3,
        )
    meaning = inspect.getdoc(replacement) or ""
    try:
        return [_traced_rule(name, each, replacement, wanted, meaning) for each in found]
    except RewriteError as error:
        raise malformed(name, error.why, line_of_function(pattern)) from None


def _traced_rule(
    name: str,
    pattern: TracedPattern,
    replacement: Callable[..., object],
    wanted: Sequence[str],
    meaning: str,
) -> Rule:
    def make(match: Match) -> object:
        if not pattern.has_right_sizes(match):
            return None
        return Traced(replacement, [match.bound[each] for each in wanted])

    return Rule(name, pattern.outputs, make, meaning)


def _check(rule: str, pattern: object) -> None:
    match pattern:
        case Call():
            for op in pattern.ops:
                _check_call(rule, op, pattern)
            places = pattern.args
            if any(isinstance(each, Rest) or each is ... for each in places[:-1]):
                raise malformed(rule, "arguments come after a rest of arguments")
            for each in (*places, *pattern.kwargs.values()):
                _check(rule, each)
        case OneOf():
            if not pattern.of:
                raise malformed(rule, "its pattern is one of nothing")
            for each in pattern.of:
                _check(rule, each)
        case Each():
            _check(rule, pattern.of)
        case list() | tuple():
            if any(isinstance(each, Rest) for each in pattern[:-1]):
                raise malformed(rule, "elements come after a rest of elements")
            for each in pattern:
                _check(rule, each)
        case Wildcard() | Size() | Rest():
            if not pattern.name:
                raise malformed(rule, "a wildcard has no name")
        case fx.Node():
            raise malformed(rule, f"its pattern has the node {pattern.name} of some graph")
        case _:
            pass


def _check_call(rule: str, op: object, pattern: Call) -> None:
    if not callable(op):
        raise malformed(rule, f"{op!r} is not an operator")
    if not isinstance(op, OpOverload):
        return
    if op._schema.is_mutable:
        raise malformed(rule, f"{op} writes to its argument, and graphs have no such operator")
    if always_draws(op):
        raise malformed(rule, f"{op} draws random numbers, and a match never contains a draw")
    names = parameter_names(op)
    given = [each for each in pattern.args if each is not ... and not isinstance(each, Rest)]
    if len(given) > len(names):
        raise malformed(rule, f"{op} takes {len(names)} arguments, not {len(given)}")
    for name in pattern.kwargs:
        if name not in names:
            raise malformed(rule, f"{op} has no parameter {name!r}")
    if pattern.commutes and len(given) < 2:
        raise malformed(rule, f"a call of {op} with fewer than two arguments does not commute")


def malformed(rule: str, why: str, source: SourceLine | None = None) -> RewriteError:
    """The error for a rule that cannot be; without `source` at the line that makes the rule."""
    return RewriteError(rule, None, None, why, source or user_line())
