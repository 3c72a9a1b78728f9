"""Declaring that an op has effects, in the words of the torch that is installed."""

from __future__ import annotations

from typing import Any

from torch._higher_order_ops import effects


def effectful(op: Any) -> None:
    """`op` is to run once, and in order with others of its kind."""
    module: Any = effects
    kind = getattr(module, "EffectType", None) or module._EffectType
    effects._register_effectful_op(op, kind.ORDERED)
