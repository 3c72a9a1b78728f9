"""Tensor subclasses that the program constructs from traced tensors, and their inner tensors.

Ops on a subclass are ordinary nodes, which the subclass itself runs.  Construction of a subclass,
and access to an inner tensor, dispatch no op; their nodes are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import fx

from adjoint.graph.operations import build_subclass
from adjoint.torch_private.fake import FakeTensor
from adjoint.torch_private.functorch import is_functorch_wrapper
from adjoint.torch_private.modes import is_traceable_wrapper_subclass
from adjoint.trace.aliasing import UNRECORDED, Alias
from adjoint.trace.emission import Emitter


def inner_tensors(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors that a subclass holds, by attribute."""
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    held = {name: getattr(tensor, name) for name in names}
    return {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}


def is_made_of_fakes(tensor: object) -> bool:
    """Whether this is a traced tensor, or a subclass or functorch wrapper around one."""
    if isinstance(tensor, FakeTensor) or is_functorch_wrapper(tensor):
        return True
    if not isinstance(tensor, torch.Tensor) or not is_traceable_wrapper_subclass(tensor):
        return False
    return any(is_made_of_fakes(inner) for inner in inner_tensors(tensor).values())


def construction(
    emitter: Emitter, node_of: Callable[[torch.Tensor], fx.Node], tensor: torch.Tensor
) -> fx.Node:
    """The node that constructs the subclass `tensor` from its inner tensors.

    As in eager torch, no gradient flows through the construction.
    """
    names, context = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    held = [getattr(tensor, name) for name in names]
    inner = [node_of(each) if isinstance(each, torch.Tensor) else each for each in held]
    size, stride = tuple(tensor.shape), tuple(tensor.stride())
    args = (type(tensor), tuple(names), context, size, stride, *inner)
    return emitter.call(build_subclass, args, mode=UNRECORDED, value=tensor)


def holder(aliases: Iterable[Alias], tensor: torch.Tensor) -> tuple[torch.Tensor, str] | None:
    """The traced subclass that holds `tensor`, and in which attribute."""
    for alias in aliases:
        outer = alias.tensor
        if outer is None or isinstance(outer, FakeTensor):
            continue
        if is_traceable_wrapper_subclass(outer):
            for name, inner in inner_tensors(outer).items():
                if inner is tensor:
                    return outer, name
    return None
