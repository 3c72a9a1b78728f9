"""Formulas of torch that ask what their trace leaves open: what only data can tell, or a size.

Checks of data are traced as if they had passed.

An example: the derivative of a singular value decomposition of complex matrices raises if the loss
depends on the phases of the singular vectors.  The check becomes a condition on the gradients,
which is tested when the compiled program runs and raises torch's error there.

A size may be 1 and broadcast in a formula, where the program before has no opinion of it.  The
derivative of the formula squeezes it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch

from adjoint.graph.operations import provided
from adjoint.open_types import OpArgument, OpArguments, OpKeywords
from adjoint.torch_private import size_guards
from adjoint.torch_private.operators import HigherOrderOperator, OpOverload
from adjoint.trace.tracer import Tracer

_aten = torch.ops.aten


class FormulaTracer(Tracer):
    """A tracer that answers checks of formulas, and collects what they check."""

    def __init__(self, *args: OpArgument) -> None:
        super().__init__(*args)
        self._holds = True
        self._conditions: list[torch.Tensor] | None = None

    @contextlib.contextmanager
    def answering_checks(self, holds: bool = True) -> Iterator[list[torch.Tensor]]:
        """Collect the conditions that are checked here; each check is told that it `holds`."""
        conditions: list[torch.Tensor] = []
        before = self._conditions, self._holds
        self._conditions, self._holds = conditions, holds
        try:
            yield conditions
        finally:
            self._conditions, self._holds = before

    def __torch_dispatch__(
        self,
        op: OpOverload | HigherOrderOperator,
        types: object,
        args: OpArguments = (),
        kwargs: OpKeywords | None = None,
    ) -> object:
        if op is _aten.allclose.default and self._conditions is not None:
            with self, torch.no_grad():
                self._conditions.append(torch.isclose(*args, **(kwargs or {})).all())
            return self._holds
        if op is _aten.squeeze.dim and self._conditions is not None and _is_one(*args):
            # For general shapes torch would keep the axis.
            op, args = _aten.select.int, (*args, 0)
        return super().__torch_dispatch__(op, types, args, kwargs)


def _is_one(x: torch.Tensor, axis: int) -> bool:
    """Whether the size of an axis is a symbol, and 1 in this call, which becomes a guard."""
    return x.dim() > 0 and size_guards.is_guarded_one(x.shape[axis])


def where_checks_hold(
    tracer: FormulaTracer, formula: Callable[[], dict[int, torch.Tensor]]
) -> dict[int, torch.Tensor]:
    """What a formula computes if its checks pass; if one fails at run time, torch's error."""
    with tracer.answering_checks() as conditions:
        gradients = formula()
    for condition in conditions:
        message = _error_of_check(tracer, formula)
        gradients = {
            key: provided(gradient, condition, message) for key, gradient in gradients.items()
        }
    return gradients


def _error_of_check(tracer: FormulaTracer, formula: Callable[[], object]) -> str:
    """What torch says where a check of its formula fails."""
    with tracer.answering_checks(holds=False):
        try:
            formula()
        except RuntimeError as error:
            return str(error)
    raise RuntimeError("its formula depends on data")
