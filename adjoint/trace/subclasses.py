"""Tensor subclasses that the program constructs from traced tensors, and their inner tensors.

Ops on a subclass are ordinary nodes, which the subclass itself runs.  Construction of a subclass,
and access to an inner tensor, dispatch no op; their nodes are made here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import fx

from adjoint.graph.operations import build_subclass
from adjoint.torch_private.fake import FakeTensor, FakeTensorMode
from adjoint.torch_private.functorch import is_functorch_wrapper
from adjoint.torch_private.modes import has_torch_dispatch, is_traceable_wrapper_subclass
from adjoint.trace.aliasing import UNRECORDED, Alias
from adjoint.trace.emission import Emitter


def inner_tensors(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The tensors that a subclass holds, by attribute."""
    names, _ = tensor.__tensor_flatten__()  # type: ignore[attr-defined]
    held = {name: getattr(tensor, name) for name in names}
    return {name: value for name, value in held.items() if isinstance(value, torch.Tensor)}


def is_made_of_fakes(tensor: object, mode: FakeTensorMode) -> bool:
    """Whether this is a traced tensor, or a subclass or functorch wrapper around one.

    `mode`: the mode of traced tensors.  To the capture, a fake of another mode is a tensor like any
    other.
    """
    if isinstance(tensor, FakeTensor):
        return tensor.fake_mode is mode
    if is_functorch_wrapper(tensor):
        return True
    if not isinstance(tensor, torch.Tensor) or not is_traceable_wrapper_subclass(tensor):
        return False
    return any(is_made_of_fakes(inner, mode) for inner in inner_tensors(tensor).values())


def has_own_dispatch(tensor: torch.Tensor) -> bool:
    """Whether a class sees every op of the tensor, and does not show what tensors it is made of."""
    if is_traceable_wrapper_subclass(tensor):
        return any(map(has_own_dispatch, inner_tensors(tensor).values()))
    return has_torch_dispatch(tensor)


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
