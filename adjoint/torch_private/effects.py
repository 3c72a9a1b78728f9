"""Ops with side effects, as torch registers them; others are impure by `graph/purity.py`."""

from __future__ import annotations

import torch
from torch._higher_order_ops import effects

from adjoint.open_types import Callee
from adjoint.torch_private.operators import OpOverload

# In torch 2.11 the effect depends on the arguments, later on the op alone.
_by_op: Callee | None = getattr(effects, "_get_effect", None)
_by_arguments: Callee | None = getattr(effects, "get_effect_key", None)


def is_effectful(op: OpOverload) -> bool:
    """Whether the op has side effects: it runs exactly once, in order with others of its kind."""
    if op.namespace == "aten" and op is not torch.ops.aten._print.default:
        return False
    if _by_op is not None:
        return _by_op(op) is not None
    return _by_arguments is not None and _by_arguments(op, (), {}) is not None
