"""What torch knows about its operators: their kinds, and which arguments they write to.

`torch.ops` is public; the classes of what it holds and their schemas are not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch._C import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "dense_kernel",
    "written_arguments",
]


def written_arguments(operator: OpOverload) -> tuple[str, ...]:
    """The names of the arguments that an operator mutates; empty if it is functional."""
    return tuple(
        argument.name
        for argument in operator._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def dense_kernel(operator: HigherOrderOperator) -> Callable[..., Any] | None:
    """What a higher-order operator computes, written in ordinary ops."""
    return operator.py_kernels.get(DispatchKey.CompositeExplicitAutograd)
