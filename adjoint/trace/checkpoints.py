"""Checkpoint regions and saved-tensor hooks, as marks on nodes.

The partition reads the regions of `torch.utils.checkpoint`: it saves what they take, and what their
policies say, and recomputes the rest (`partition/marks.py`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import takewhile

from torch import fx

from adjoint.errors import CaptureError
from adjoint.failing import call_user_code
from adjoint.graph.metadata import (
    CheckpointRegion,
    region_of,
    region_of_evaluated_node,
    set_region,
    source_of,
)
from adjoint.graph.purity import draws, is_impure
from adjoint.torch_private.autograd import Hooks, saved_tensor_hooks
from adjoint.trace.emission import Emitter


class CheckpointRegions:
    """Knows, while a program runs, which checkpoint region it is in.

    `torch.utils.checkpoint` works by saved-tensor hooks, so the current hooks identify the region;
    other hooks are the user's own.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Callable[..., object], int]] = {}
        """By the id of the pack hook: the hook, and the index of its region."""
        self._entered: list[int] = []
        self._count = 0

    def enter(self) -> None:
        """Enter a checkpoint region that is not identified by hooks."""
        self._entered.append(self._count)
        self._count += 1

    def leave(self) -> None:
        """Leave the innermost region entered by `enter`."""
        self._entered.pop()

    def current(self) -> CheckpointRegion | None:
        """The innermost region that the program is in."""
        evaluated = region_of_evaluated_node()
        if evaluated is not None:
            return evaluated
        index = self._index()
        return None if index is None else CheckpointRegion(index)

    def hooks(self) -> Hooks | None:
        """The saved-tensor hooks that the program itself has set."""
        hooks = saved_tensor_hooks()
        return None if hooks is None or _is_checkpoint(hooks) else hooks

    def _index(self) -> int | None:
        hooks = saved_tensor_hooks()
        if hooks is None or not _is_checkpoint(hooks):
            return self._entered[-1] if self._entered else None
        pack = hooks[0]
        if id(pack) not in self._seen:
            # The hook is kept alive so that its id stays unique.
            self._seen[id(pack)] = (pack, self._count)
            self._count += 1
        return self._seen[id(pack)][1]


def under_policy(
    emitter: Emitter, run: Callable[[], object], policy: Callable[[object], str]
) -> object:
    """The result of `run`, whose nodes are marked with the policy of selective checkpointing."""
    last = next(iter(reversed(emitter.graph.nodes)), None)
    result = call_user_code(run)
    policy_name = call_user_code(policy, result)
    for node in takewhile(lambda node: node is not last, reversed(emitter.graph.nodes)):
        region = region_of(node)
        if region is not None:
            _refuse_contradiction(node, region.policy, policy_name)
            set_region(node, dataclasses.replace(region, policy=policy_name))
    return result


def _refuse_contradiction(node: fx.Node, one: str, other: str) -> None:
    """Raise if policies of nested checkpoints exclude each other, or one excludes the operator."""
    if {one, other} in _CONTRADICTIONS:
        raise CaptureError(
            f"{node.target} in nested checkpoints",
            f"the policy of one is {one}, and that of the other is {other}",
            "let one of them return PREFER_SAVE or PREFER_RECOMPUTE for this operator",
            source_of(node),
        )
    if other == "MUST_RECOMPUTE" and is_impure(node) and not draws(node):
        raise CaptureError(
            f"{node.target} in a checkpoint whose policy for it is MUST_RECOMPUTE",
            "it has effects, which would happen twice",
            "return PREFER_RECOMPUTE for this operator, or move it out of the checkpoint",
            source_of(node),
        )


# Policies of nested checkpoints of which only one can be followed.
_CONTRADICTIONS = (
    {"MUST_SAVE", "MUST_RECOMPUTE"},
    {"MUST_CPU_OFFLOAD", "MUST_RECOMPUTE"},
    {"MUST_SAVE", "MUST_CPU_OFFLOAD"},
)


def _is_checkpoint(hooks: Hooks) -> bool:
    return getattr(hooks[0], "__qualname__", "").startswith("_checkpoint_hook")
