"""The table of definitions by operator.  An operator without one is a library call."""

from __future__ import annotations

from torch import fx

from adjoint.graph.metadata import computes_tensor
from adjoint.loops.pointwise import TABLE
from adjoint.lower.definitions import creation, formulas, indexing, pieces, random, reductions
from adjoint.lower.definitions.elements import Definition, NoDefinition

FAMILIES = (creation, formulas, indexing, pieces, random, reductions)

RULES = {op: rule for family in FAMILIES for op, rule in family.RULES.items()}

# Operators whose result is computed wherever it is read.
CONSTANTS = frozenset(creation.RULES)


def definition_of(node: fx.Node) -> Definition | None:
    """The definition of a node's value; None: it is a library call."""
    if node.op != "call_function" or not computes_tensor(node):
        return None
    if node.target in TABLE:
        return formulas.by_formula(node)
    rule = RULES.get(node.target)
    try:
        return None if rule is None else rule(node, *node.args, **node.kwargs)
    except NoDefinition:
        return None
