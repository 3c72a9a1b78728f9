"""Regions of the program that later stages must know of: checkpoints and saved-tensor hooks."""

from __future__ import annotations

from typing import Any

from adjoint.graph.metadata import CheckpointRegion
from adjoint.torch_private.modes import saved_tensor_hooks


class Regions:
    """Tells, while a program runs, which region it is in.

    `torch.utils.checkpoint` works by hooks on saved tensors, so the hooks in force say which
    checkpoint the program is inside of.
    """

    def __init__(self) -> None:
        self._seen: dict[int, tuple[Any, CheckpointRegion]] = {}
        self._entered: list[CheckpointRegion] = []
        self._count = 0

    def enter(self, policy: str = "") -> CheckpointRegion:
        """Begin a checkpoint that shows itself otherwise than by hooks."""
        region = CheckpointRegion(self._count, policy)
        self._count += 1
        self._entered.append(region)
        return region

    def leave(self) -> None:
        """End the innermost one begun by `enter`."""
        self._entered.pop()

    def current(self) -> CheckpointRegion | None:
        """The innermost checkpoint the program is in."""
        hooks = saved_tensor_hooks()
        pack = hooks[0] if hooks is not None else None
        if pack is None or not getattr(pack, "__qualname__", "").startswith("_checkpoint_hook"):
            return self._entered[-1] if self._entered else None
        if id(pack) not in self._seen:
            # The hook is kept so that its identity is not given to another one.
            self._seen[id(pack)] = (pack, CheckpointRegion(self._count))
            self._count += 1
        return self._seen[id(pack)][1]
