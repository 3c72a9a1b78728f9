"""Passes made of rules."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from adjoint.passes import Pass, Place
from adjoint.rewrite.engine import rewrite
from adjoint.rewrite.rules import Rule


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
