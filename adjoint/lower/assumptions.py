"""Assumptions that lowering makes about sizes; the program checks them in each call.

Lowering, like differentiation, branches on symbolic sizes only where it must.  Each branch taken is
recorded, and the plan is valid for sizes that would take the same branches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import sympy
from torch import fx

from adjoint.graph.metadata import inputs_of, value_or_none
from adjoint.loops.plan import Plan
from adjoint.torch_private import size_guards, symbols
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import fake_mode_of


@dataclass(frozen=True)
class Noted:
    """The assumptions of one lowering."""

    graph_module: fx.GraphModule
    all: Sequence[sympy.Basic]
    """All assumptions about these symbols: torch simplifies expressions by earlier ones, too."""
    before: int
    """The number of assumptions before lowering."""

    def usable(self, plan: Plan, needs_kernels: bool = True) -> Plan | None:
        """The plan with its assumptions; None if it is no better than running op by op, because it
        neither has kernels nor overwrites inputs, or cannot be checked."""
        plan = replace(plan, assumed=tuple(self.all))
        if (
            (needs_kernels and not (plan.launches or _overwrites(plan)))
            or _has_unknown_sizes(plan)
            or not self._can_be_checked()
        ):
            return None
        return plan

    def _can_be_checked(self) -> bool:
        """Whether each new assumption is about sizes of inputs."""
        inputs = inputs_of(self.graph_module.graph)
        shown = symbols.symbol_positions(value_or_none(node) for node in inputs)
        known = {symbol for symbol, _, _ in shown}
        return all(expr.free_symbols <= known for expr in self.all[self.before :])


@contextlib.contextmanager
def noting_assumptions(graph_module: fx.GraphModule) -> Iterator[Noted]:
    """Record assumptions made in this context; they are complete when it ends."""
    shape_env = fake_mode_of(graph_module).shape_env
    before = len(size_guards.assumed(shape_env))
    with general_shapes(), size_guards.assumptions(shape_env) as assumed:
        yield Noted(graph_module, assumed, before)


def _overwrites(plan: Plan) -> bool:
    """Whether inputs are written in place, which would be copied op by op."""
    return any(slot.replaces is not None for slot in plan.slots)


def _has_unknown_sizes(plan: Plan) -> bool:
    """Whether some sizes are known only in the middle of a run."""
    known = {symbol for symbol, _, _ in plan.symbols}
    sizes = [size for slot in plan.slots for size in (*(slot.shape or ()), *slot.strides)]
    sizes += [size for launch in plan.launches for size in launch.extents]
    return any(isinstance(size, sympy.Expr) and size.free_symbols - known for size in sizes)
