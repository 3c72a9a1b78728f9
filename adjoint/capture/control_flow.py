"""Higher-order operators: `cond`, `while_loop`, `scan`, `map` and checkpoints, with their bodies."""

from __future__ import annotations

from typing import Any

from adjoint.capture.tracer import Tracer
from adjoint.torch_private.operators import HigherOrderOperator


def call(tracer: Tracer, op: HigherOrderOperator, args: Any, kwargs: Any) -> Any:
    """Capture a call of `op`."""
    return op(*args, **kwargs)
