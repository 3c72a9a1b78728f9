"""`adjoint.replaces`: a pass that puts what one torch function computes in the place of another.

A pass that never matches would go unnoticed.  So, when it is made, the function that it replaces is
compiled as far as the place at which the pass runs, and the pass has to match there.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import torch

from adjoint.capture.direct import capture_call
from adjoint.compiler import Compiler
from adjoint.errors import RewriteError
from adjoint.failing import call_user_code
from adjoint.graph.leaves import detached, is_floating
from adjoint.options import Options
from adjoint.passes import Pass, Place
from adjoint.rewrite.passes import rules_pass
from adjoint.rewrite.patterns import Match
from adjoint.rewrite.rules import Rule, malformed, name_of, traced_rules
from adjoint.source import line_of_function
from adjoint.torch_private import trees


def replaces(
    pattern: Callable[..., object],
    *examples: object,
    place: Place = "primal",
    after: str | None = None,
    where: Callable[[Match], bool] | None = None,
) -> Callable[[Callable[..., object]], Pass]:
    """Make a pass of a torch function that computes what the torch function `pattern` computes.

    Both take the same parameters; `examples` are arguments that `pattern` is traced with.  A tensor
    stands for one of any sizes, a number for any number.  Operators that work on several axes, such
    as `linear`, are other calls for another number of axes.  `where`: what has to hold for a match.
    The name of the pass is that of the function.  At `primal`, before differentiation, derivatives
    are those of the new function; without `after` the pass runs first there, and last elsewhere.
    A pattern that does not match itself at `primal` is an error; at `joint` and `post`, where
    derivatives and other passes may change or use what is inside it, there is a warning.  So there
    is if it reads a size as a number, as `math.sqrt(x.shape[-1])` does: `x.shape[-1] ** 0.5` fits
    any size.

        >>> import torch, adjoint
        >>> @adjoint.replaces(lambda x: torch.exp(torch.log(x)), torch.ones(2))
        ... def identity(x):
        ...     return x.clone()
        >>> compiled = adjoint.compile(lambda x: torch.exp(torch.log(x)), passes=[identity])
        >>> compiled(torch.tensor([-1.0]))
        tensor([-1.])
    """

    def make(function: Callable[..., object]) -> Pass:
        name = name_of(function)
        if where is not None and not callable(where):
            raise malformed(name, f"its guard `where` is {where!r}, which cannot be called")
        rules = traced_rules(pattern, function, examples, name)
        without = _why_no_match(pattern, examples, rules, rules_pass(name, rules, place, after))
        if without is not None and place == "primal":
            raise RewriteError(None, name, None, without, line_of_function(pattern))
        if without is not None:
            warnings.warn(f"pass {name!r}: {without}", stacklevel=2)
        if where is not None:
            rules = [_guarded(rule, where) for rule in rules]
        made = rules_pass(name, rules, place, after, inspect.getdoc(function) or "")
        return replace(made, defined_by=(pattern, function))

    return make


def _guarded(rule: Rule, where: Callable[[Match], bool]) -> Rule:
    def replacement(match: Match) -> object:
        made = rule.replacement(match)
        return made if made is not None and call_user_code(where, match) else None

    return replace(rule, replacement=replacement)


def _why_no_match(
    pattern: Callable[..., object], examples: Sequence[object], rules: Sequence[Rule], made: Pass
) -> str | None:
    """Why a pass does not match the function that it was made of; None if it does."""
    for with_grad in {"primal": (False, True), "joint": (True,), "post": (False,)}.get(
        made.place, ()
    ):
        if _matches(pattern, examples, rules, made, with_grad):
            continue
        called = " called with tensors that require grad" if with_grad else ""
        why = (
            "torch calls other operators where sizes are numbers"
            if made.place == "primal" and made.after is None
            else "derivatives or passes before it change that function, or use a value inside it"
        )
        return (
            f"at {made.place!r} its pattern does not match the function that it was traced from"
            f"{called}: {why}"
        )
    return None


def _matches(
    pattern: Callable[..., object],
    examples: Sequence[object],
    rules: Sequence[Rule],
    made: Pass,
    with_grad: bool,
) -> bool:
    """Whether a pass matches the function that it was made of, called with its examples."""
    places = [n for n, each in enumerate(examples) if with_grad and is_floating(each)]
    with torch.no_grad():
        given = list(map(detached, examples))
    for each in filter(is_floating, given):
        each.requires_grad_(with_grad)
    found = False

    def noted(match: Match, rule: Rule) -> object:
        nonlocal found
        found = found or rule.replacement(match) is not None
        return None

    noting = [replace(rule, replacement=partial(noted, rule=rule)) for rule in rules]
    probe = rules_pass(made.name, noting, made.place, made.after)
    compiler = Compiler(Options(target="reference", cache=False, passes=(probe,)))
    # A copy: what a function returns may be a view, which the caller makes of another result.
    called = partial(_copies, pattern)
    try:
        graph = capture_call(called, tuple(given), {}, False).graph_module
    except RuntimeError:
        # An operator has no derivative for one of them, such as the mean of a normalization.
        return with_grad
    if with_grad:
        compiler.derivative(graph, places)
    else:
        compiler.ready_to_run(compiler.undifferentiated(graph))
    return found


def _copies(function: Callable[..., object], *args: object) -> object:
    return trees.map_leaves(torch.clone, function(*args))
