"""Ops with effects beyond their results."""

from __future__ import annotations

from typing import Any

import torch
from torch._higher_order_ops import effects

from adjoint.torch_private.operators import OpOverload

# torch 2.11 asks by arguments, later ones by the op alone.
_by_op: Any = getattr(effects, "_get_effect", None)
_by_arguments: Any = getattr(effects, "get_effect_key", None)


def is_effectful(op: OpOverload) -> bool:
    """The op must run once, and in order with others of its kind (it prints, logs, counts)."""
    if op.namespace == "aten" and op is not torch.ops.aten._print.default:
        return False
    if _by_op is not None:
        return _by_op(op) is not None
    return _by_arguments(op, (), {}) is not None
