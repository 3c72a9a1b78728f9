"""Activation checkpointing: arguments of checkpoints in a graph, and selective policies."""

from __future__ import annotations

import contextlib
import inspect
import traceback
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Protocol, TypeAlias

from torch import fx
from torch._higher_order_ops.wrap import TagActivationCheckpoint
from torch.utils import checkpoint

from adjoint.open_types import OpKeywords, UserFunction
from adjoint.torch_private.modes import TorchDispatchMode
from adjoint.torch_private.patches import replaced

# Called with a function that runs an op and one that maps its result to the policy's decision;
# returns the result.
Handler: TypeAlias = Callable[[Callable[[], object], Callable[[object], str]], object]


class _Policy(Protocol):
    """The mode of torch's that selective checkpointing runs ops under."""

    policy_fn: UserFunction


_CONTEXT_PARAMETERS = inspect.signature(checkpoint.SelectiveCheckpointContext).parameters


def split_arguments(kwargs: dict[str, object]) -> tuple[dict[str, object], dict[str, object]]:
    """Keyword arguments of the checkpoint itself, and those of the function that it runs."""
    own, of_function = TagActivationCheckpoint.divide_kwargs(kwargs)
    return own, of_function


def forward_context(body: fx.GraphModule) -> contextlib.AbstractContextManager[object]:
    """The context that selective checkpointing runs the forward in."""
    make = body.meta.get("_checkpoint_context_fn")
    return contextlib.nullcontext() if make is None else make()[0]


@contextlib.contextmanager
def selective_checkpoints_handled_by(handle: Handler, mode: TorchDispatchMode) -> Iterator[None]:
    """Under `mode`, selective checkpointing calls `handle` for each op, and caches nothing.

    Checkpoints that an error has interrupted are closed.
    """

    def dispatch(
        self: _Policy,
        op: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: OpKeywords | None = None,
    ) -> object:
        named = kwargs or {}
        if op in checkpoint.SAC_IGNORED_OPS:
            return op(*args, **named)

        def policy(result: object) -> str:
            decision = self.policy_fn(_context(result), op, *args, **named)
            if isinstance(decision, bool):
                # Older policies return whether to save.
                decision = checkpoint._policy_from_bool(decision)
            return str(decision.name)

        return handle(lambda: op(*args, **named), policy)

    with replaced(checkpoint._CachingTorchDispatchMode, "__torch_dispatch__", dispatch, mode):
        try:
            yield
        except BaseException as error:
            _close_interrupted(error)
            raise


def _close_interrupted(error: BaseException) -> None:
    """Leave the modes and hooks of the checkpoints that the error came out of, the innermost first.

    In torch 2.11 they stay until the frames that the error refers to are freed.
    """
    opened = checkpoint._checkpoint_without_reentrant_generator.__code__
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        for generator in list(frame.f_locals.values()):
            if isinstance(generator, GeneratorType) and generator.gi_code is opened:
                generator.close()


def _context(result: object) -> checkpoint.SelectiveCheckpointContext:
    if "op_output" not in _CONTEXT_PARAMETERS:  # torch 2.11
        return checkpoint.SelectiveCheckpointContext(is_recompute=False)
    return checkpoint.SelectiveCheckpointContext(is_recompute=False, op_output=result)
