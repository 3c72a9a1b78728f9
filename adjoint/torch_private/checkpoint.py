"""Activation checkpointing: what torch keeps of a checkpoint's arguments in a graph."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from torch import fx
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch.utils import checkpoint

from adjoint.torch_private.modes import TorchDispatchMode, replaced

# Given how to run an op, and what the policy says once its result is known; returns the result.
AskPolicy: TypeAlias = Callable[[Callable[[], Any], Callable[[Any], str]], Any]

_CONTEXT_PARAMETERS = inspect.signature(checkpoint.SelectiveCheckpointContext).parameters


def split_arguments(kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arguments of the checkpoint, and those of the function that it runs."""
    own, functions = TagActivationCheckpoint.divide_kwargs(kwargs)
    return own, functions


def forward_context(body: fx.GraphModule) -> contextlib.AbstractContextManager[Any]:
    """The context that selective checkpointing runs the forward in."""
    make = body.meta.get("_checkpoint_context_fn")
    return contextlib.nullcontext() if make is None else make()[0]


@contextlib.contextmanager
def selective_checkpoints_handled_by(ask: AskPolicy, mode: TorchDispatchMode) -> Iterator[None]:
    """Under `mode`, selective checkpointing calls `ask` for each op, and keeps nothing itself."""

    def dispatch(
        self: Any, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if op in checkpoint.SAC_IGNORED_OPS:
            return op(*args, **named)

        def policy(result: Any) -> str:
            said = self.policy_fn(_context(result), op, *args, **named)
            # Older policies say whether to save.
            said = checkpoint._policy_from_bool(said) if isinstance(said, bool) else said
            return str(said.name)

        return ask(lambda: op(*args, **named), policy)

    with replaced(checkpoint._CachingTorchDispatchMode, "__torch_dispatch__", dispatch, mode):
        yield


def _context(result: Any) -> checkpoint.SelectiveCheckpointContext:
    if "op_output" not in _CONTEXT_PARAMETERS:  # torch 2.11
        return checkpoint.SelectiveCheckpointContext(is_recompute=False)
    return checkpoint.SelectiveCheckpointContext(is_recompute=False, op_output=result)
