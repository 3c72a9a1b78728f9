"""Torch functions, traced on fake tensors: as patterns, and as replacements.

A pattern is traced with symbolic sizes, so it matches any; what the function does must not depend
on them.  A number among the examples stands for any number: the function is traced with two values
of it, and where the calls differ is where it goes.

Some functions call other operators for tensors that require grad, and some have a definition of
torch's for symbolic sizes besides the one in C++, which capture uses where sizes are numbers.  So a
function is traced in each of these ways, and is one pattern for each set of calls.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import sympy
import torch

from adjoint.graph.leaves import detached, is_floating
from adjoint.graph.metadata import value_at, value_of
from adjoint.open_types import OpArgument
from adjoint.rewrite.patterns import Call, Match, Size, Wildcard
from adjoint.rewrite.recording import Step, Untraceable, recorded
from adjoint.torch_private import size_evaluation, symbols, trees
from adjoint.torch_private.composites import composites_as_in_eager
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import make_fake, new_fake_mode
from adjoint.torch_private.modes import isolated
from adjoint.torch_private.symbols import Number


@dataclass(frozen=True)
class TracedPattern:
    """The pattern of a torch function."""

    parameters: tuple[str, ...]
    outputs: tuple[object, ...]
    sizes: Mapping[str, sympy.Basic]
    """The sizes, and numbers computed from them, among the arguments of its calls, by the names of
    their patterns."""
    symbols: Mapping[sympy.Symbol, tuple[str, int]]
    """The symbols of the sizes: each is the size of a parameter along an axis."""
    fixed: frozenset[tuple[str, int]]
    """The axes of parameters that have the size of the example in every match."""

    def has_right_sizes(self, match: Match) -> bool:
        """Whether the sizes in a match are what the function would compute from its arguments."""
        known: dict[sympy.Symbol, object] = {}
        for symbol, (name, axis) in self.symbols.items():
            value = value_of(match.bound[name])
            if axis >= value.dim():
                return False
            known[symbol] = value.shape[axis]
        return all(
            _same_number(size_evaluation.evaluate(expr, known), value_at(match.bound[name]))
            for name, expr in self.sizes.items()
        )


def _same_number(one: Number, other: Number) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        # C++ and Python may compute the square root of a size with another last digit.
        return math.isclose(one, other, rel_tol=1e-14)
    return symbols.same_number(one, other)


def _is_real(argument: object) -> bool:
    return isinstance(value_at(argument), (float, torch.SymFloat))


def parameters_of(function: Callable[..., object]) -> tuple[str, ...]:
    """The names of the parameters of a function; those of a module's `forward`."""
    if not callable(function):
        raise Untraceable(f"it is of type {type(function).__name__}, which cannot be called")
    try:
        signature = inspect.signature(getattr(function, "forward", function))
    except ValueError:
        name = getattr(function, "__name__", "it")
        raise Untraceable(
            f"{name} does not say which arguments it takes; write a function that calls it"
        ) from None
    found = signature.parameters.values()
    if any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in found):
        raise Untraceable("it takes any number of arguments")
    return tuple(each.name for each in found)


def pattern_of(function: Callable[..., object], examples: Sequence[object]) -> list[TracedPattern]:
    """The patterns of a torch function called with arguments like `examples`."""
    names = parameters_of(function)
    if len(names) != len(examples):
        raise Untraceable(f"it takes {len(names)} arguments and has {len(examples)} examples")
    for name, example in zip(names, examples, strict=True):
        if isinstance(example, (list, tuple, dict)):
            kind = type(example).__name__
            raise Untraceable(f"its example for {name} is a {kind}; give each tensor a parameter")
    made: list[TracedPattern] = []
    for definitions in (composites_as_in_eager, contextlib.nullcontext):
        trace = partial(_traced, function, names, examples, definitions)
        try:
            found = [trace(()), _traced_with_grad(trace, examples)]
        except (RuntimeError, Untraceable):
            # Not all of C++ takes symbolic sizes.
            if definitions is composites_as_in_eager:
                raise
            continue
        # Some of it reads them as numbers.
        made += [each for each in found if not made or each.fixed <= made[0].fixed]
    return list({_shown(each): each for each in made}.values())


def _traced_with_grad(
    trace: Callable[[Sequence[int]], TracedPattern], examples: Sequence[object]
) -> TracedPattern:
    """The pattern for tensors that require grad."""
    places = [n for n, each in enumerate(examples) if is_floating(each)]
    try:
        return trace(places)
    except RuntimeError:
        # An operator has no derivative for some of them, such as the mean of a normalization.
        return trace([place for place in places if _succeeds(partial(trace, [place]))])


def _succeeds(run: Callable[[], object]) -> bool:
    try:
        run()
    except RuntimeError:
        return False
    return True


def _shown(pattern: TracedPattern) -> str:
    """A text that is equal for equal patterns."""
    numbers: dict[int, int] = {}

    def text(each: object) -> str:
        match each:
            case Wildcard():
                return f"?{each.name}"
            case Size():
                return f"#{each.name}"
            case Call():
                if id(each) in numbers:
                    return f"%{numbers[id(each)]}"
                numbers[id(each)] = len(numbers)
                inner = [text(arg) for arg in (*each.args, *each.kwargs.items())]
                return f"{each.ops[0]}({', '.join(inner)})"
            case list() | tuple():
                return f"[{', '.join(map(text, each))}]"
            case _:
                return repr(each)

    return " ".join(map(text, pattern.outputs))


def _traced(
    function: Callable[..., object],
    names: Sequence[str],
    examples: Sequence[object],
    definitions: Callable[[], contextlib.AbstractContextManager[object]],
    requiring: Sequence[int],
) -> TracedPattern:
    """`definitions`: of composite operators; `requiring`: the positions of what requires grad."""
    mode = new_fake_mode()
    values: list[object] = []
    symbol_places: dict[sympy.Symbol, tuple[str, int]] = {}
    with torch.no_grad():
        examples = list(map(detached, examples))
    with isolated(), general_shapes(), mode, definitions(), torch.enable_grad():
        for place, (name, example) in enumerate(zip(names, examples, strict=True)):
            if isinstance(example, torch.Tensor):
                fake = make_fake(mode, example, True, name)
                fake.requires_grad_(place in requiring)
                values.append(fake)
                for axis, size in enumerate(fake.shape):
                    expr = symbols.unsimplified(size)
                    if isinstance(expr, sympy.Symbol):
                        symbol_places.setdefault(expr, (name, axis))
            else:
                values.append(example)
        numbers = [
            place
            for place, each in enumerate(examples)
            if isinstance(each, (int, float)) and not isinstance(each, bool)
        ]
        first, results = recorded(function, values)
        others = [
            (names[place], recorded(function, _with_other_number(values, place))[0])
            for place in numbers
        ]
    making = _PatternMaker(symbol_places)
    for name, value in zip(names, values, strict=True):
        if isinstance(value, torch.Tensor):
            making.patterns[id(value)] = Wildcard(name)
    changing = _changing_numbers(first, others, dict(zip(names, values, strict=True)))
    for place, step in enumerate(first):
        making.add(step, changing.get(place, {}))
    outputs = results if isinstance(results, (tuple, list)) else (results,)
    made = tuple(making.output(each) for each in outputs)
    sizes: dict[tuple[str, int], object] = {
        (name, axis): size
        for name, value in zip(names, values, strict=True)
        if isinstance(value, torch.Tensor)
        for axis, size in enumerate(value.shape)
    }
    fixed = frozenset(
        place
        for place, size in sizes.items()
        if isinstance(size, torch.SymInt) and not symbols.expression(size).free_symbols
    )
    return TracedPattern(tuple(names), made, making.sizes, making.used_symbols(), fixed)


def _with_other_number(values: Sequence[OpArgument], place: int) -> list[object]:
    changed = list(values)
    changed[place] = values[place] + 1 if isinstance(values[place], int) else values[place] * 2 + 1
    return changed


def _changing_numbers(
    first: Sequence[Step],
    others: Sequence[tuple[str, Sequence[Step]]],
    values: Mapping[str, object],
) -> dict[int, dict[int, str]]:
    """For each step, the leaves among its arguments that are a parameter, and which."""
    found: dict[int, dict[int, str]] = {}
    for name, steps in others:
        if [each.op for each in steps] != [each.op for each in first]:
            raise Untraceable(f"it calls other operators for another value of {name}")
        for place, (one, other) in enumerate(zip(first, steps, strict=True)):
            leaves = zip(
                trees.leaves((one.args, one.kwargs)),
                trees.leaves((other.args, other.kwargs)),
                strict=True,
            )
            for leaf, (before, after) in enumerate(leaves):
                if not isinstance(before, (int, float)) or repr(before) == repr(after):
                    continue
                if before != values[name]:
                    raise Untraceable(f"it passes a number computed from {name} to {one.op}")
                found.setdefault(place, {})[leaf] = name
    return found


class _PatternMaker:
    def __init__(self, places: Mapping[sympy.Symbol, tuple[str, int]]) -> None:
        self.places = places
        self.patterns: dict[int, object] = {}
        self.sizes: dict[str, sympy.Basic] = {}
        self.kept: list[object] = []

    def add(self, step: Step, numbers: Mapping[int, str]) -> None:
        """The pattern of one call; `numbers`: leaves of its arguments that are parameters."""
        count = iter(range(1 << 30))

        def leaf(value: object) -> object:
            name = numbers.get(next(count))
            return Wildcard(name) if name is not None else self._argument(value)

        args, kwargs = trees.map_leaves(leaf, (step.args, step.kwargs))
        made = Call((step.op,), args, kwargs)
        self.kept.append(step.result)
        if isinstance(step.result, torch.Tensor):
            self.patterns[id(step.result)] = made
            return
        for place, part in enumerate(step.result):
            if isinstance(part, torch.Tensor):
                self.patterns[id(part)] = Call((operator.getitem,), (made, place))

    def _argument(self, value: object) -> object:
        if isinstance(value, torch.Tensor):
            if id(value) not in self.patterns:
                raise Untraceable("it uses a tensor that is not an argument")
            return self.patterns[id(value)]
        if isinstance(value, torch.SymInt):
            expr = symbols.unsimplified(value)
            assert expr is not None
            self.sizes[str(expr)] = expr
            return Size(str(expr))
        if isinstance(value, torch.SymFloat):
            expr = symbols.expression(value)
            self.sizes[str(expr)] = expr
            return Wildcard(str(expr), where=_is_real)
        return value

    def output(self, value: object) -> Call:
        pattern = self.patterns.get(id(value))
        if not isinstance(pattern, Call):
            raise Untraceable("it returns something that none of its operators computed")
        return pattern

    def used_symbols(self) -> dict[sympy.Symbol, tuple[str, int]]:
        used = {symbol for expr in self.sizes.values() for symbol in expr.free_symbols}
        missing = used - self.places.keys()
        if missing:
            raise Untraceable(f"the size {missing.pop()} in it depends on data")
        return {symbol: self.places[symbol] for symbol in used}
