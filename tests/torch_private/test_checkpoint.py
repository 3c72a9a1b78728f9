from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import BaseTorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from adjoint.torch_private.checkpoint import (
    forward_context,
    selective_checkpoints_handled_by,
    split_arguments,
)

aten = torch.ops.aten


def test_arguments_of_the_checkpoint_and_of_its_function() -> None:
    own, functions = split_arguments({"use_reentrant": False, "preserve_rng_state": True, "z": 1})
    assert own == {"use_reentrant": False, "preserve_rng_state": True}
    assert functions == {"z": 1}


def save_sines(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    return CheckpointPolicy.MUST_SAVE if op is aten.sin.default else False


def test_a_selective_checkpoint_asks() -> None:
    body = torch.fx.GraphModule({}, torch.fx.Graph())
    body.meta["_checkpoint_context_fn"] = functools.partial(
        create_selective_checkpoint_contexts, save_sines
    )
    said = []

    def ask(run: Any, policy: Any) -> Any:
        result = run()
        said.append(policy(result))
        return result

    mode = BaseTorchDispatchMode()
    with selective_checkpoints_handled_by(ask, mode):
        with forward_context(body):
            torch.ones(3).sin().cos()
        assert not said
        with mode, forward_context(body):
            torch.ones(3).sin().cos()
    assert said[-2:] == ["MUST_SAVE", "PREFER_RECOMPUTE"]


def test_a_checkpoint_that_an_error_interrupts_leaves_its_modes() -> None:
    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError(x.sin())

    contexts = functools.partial(create_selective_checkpoint_contexts, save_sines)

    def nested(x: torch.Tensor) -> Any:
        return checkpoint(fails, x, use_reentrant=False, context_fn=contexts)

    mode, x = BaseTorchDispatchMode(), torch.ones(3)
    # The error is kept, and so are the frames that it went through.
    handled = selective_checkpoints_handled_by(lambda run, policy: run(), mode)
    with pytest.raises(ValueError, match="tensor") as kept, mode, handled:
        checkpoint(nested, x, use_reentrant=False, context_fn=contexts)
    assert not _get_current_dispatch_mode_stack()
    assert kept.value is not None


def test_a_checkpoint_that_is_not_selective_has_no_context() -> None:
    with forward_context(torch.fx.GraphModule({}, torch.fx.Graph())):
        assert torch.equal(torch.ones(3).sin(), torch.ones(3).sin())
