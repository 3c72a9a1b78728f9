"""Passes made of rules, and the decorator by which users make one.

@adjoint.replaces(lambda x, y: torch.relu(x + y), torch.ones(2, 3), torch.ones(2, 3))
def fused_add_relu(x, y):
    return torch.ops.mine.add_relu(x, y)

torch.compile(f, backend="adjoint", options={"passes": [fused_add_relu]})
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from torch import fx

from adjoint.passes import Pass, Place
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.patterns import Match
from adjoint.rewrite.rules import Rule, traced_rules


def rules_pass(
    name: str,
    rules: Sequence[Rule],
    place: Place = "post",
    after: str | None = None,
    meaning: str = "",
) -> Pass:
    """The pass that applies `rules` until none does."""

    def run(graph_module: fx.GraphModule) -> fx.GraphModule:
        return rewrite(graph_module, rules, name)

    run.__doc__ = meaning or "; ".join(rule.meaning or rule.name for rule in rules)
    return Pass(name, run, place, after, rules=tuple(rules))


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
    are those of the new function.

        >>> import torch, adjoint
        >>> @adjoint.replaces(lambda x: torch.exp(torch.log(x)), torch.ones(2))
        ... def identity(x):
        ...     return x.clone()
        >>> compiled = adjoint.compile(lambda x: torch.exp(torch.log(x)), passes=[identity])
        >>> compiled(torch.tensor([-1.0]))
        tensor([-1.])
    """

    def make(function: Callable[..., object]) -> Pass:
        name = function.__name__.replace("_", "-").strip("-")
        rules = traced_rules(pattern, function, examples, where, name)
        made = rules_pass(name, rules, place, after, inspect.getdoc(function) or "")
        return Pass(name, made.run, place, after, rules=made.rules, defined_by=(pattern, function))

    return make
