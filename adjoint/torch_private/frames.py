"""Frames that Dynamo leaves alone, and its errors, without importing Dynamo, which takes
seconds."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

from torch._C._dynamo import eval_frame

Function = TypeVar("Function", bound=Callable[..., object])


def left_alone_by_dynamo(function: Function) -> Function:
    """Neither the frames of a function nor those that they call are compiled.

    As `torch.compiler.disable`, but without a wrapper that every call goes through.
    """
    skipped = eval_frame._FrameExecStrategy(
        eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP
    )
    eval_frame.set_code_exec_strategy(function.__code__, skipped)
    return function


def not_traced(function: Function) -> Function:
    """As `left_alone_by_dynamo`; in a frame that Dynamo traces, a call is a graph break, too."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return left_alone_by_dynamo(function)


def is_dynamo_error(error: BaseException) -> bool:
    """Whether it is a graph break, or another exception of Dynamo's."""
    exc = sys.modules.get("torch._dynamo.exc")
    # While Dynamo itself is being imported the module is incomplete.
    kind = getattr(exc, "TorchDynamoException", None)
    return kind is not None and isinstance(error, kind)
