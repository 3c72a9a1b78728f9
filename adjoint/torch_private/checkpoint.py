"""Activation checkpointing: what torch keeps of a checkpoint's arguments in a graph."""

from __future__ import annotations

import contextlib
from typing import Any

from torch import fx
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import SelectiveCheckpointContext

from adjoint.torch_private.operators import OpOverload


def split_arguments(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the checkpoint, and those of the function that it runs."""
    return TagActivationCheckpoint.divide_kwargs(kwargs)


def forward_context(body: fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """The context that selective checkpointing runs the forward in."""
    make = body.meta.get("_checkpoint_context_fn")
    return contextlib.nullcontext() if make is None else make()[0]


def selective_policy(op: OpOverload, args: Any, kwargs: Any) -> str:
    """What selective checkpointing says of a call: the name of its policy, or nothing."""
    for mode in reversed(_get_current_dispatch_mode_stack()):
        policy = getattr(mode, "policy_fn", None)
        if policy is not None:
            said = policy(SelectiveCheckpointContext(is_recompute=False), op, *args, **kwargs)
            return str(getattr(said, "name", said))
    return ""
