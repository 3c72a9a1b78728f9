"""What a user asks of an export: example arguments, sizes that vary, what to differentiate by."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import torch

from adjoint.errors import ExportError
from adjoint.graph.leaves import is_floating
from adjoint.open_types import TorchValue
from adjoint.torch_private import trees

# The bounds of a size: the least, and the most if there is one.
Bounds: TypeAlias = "tuple[int, int | None]"
ANY: Bounds = (0, None)


@dataclass
class Asked:
    """Example arguments, with names."""

    args: tuple[TorchValue, ...]
    kwargs: dict[str, object]
    positional: tuple[str, ...]
    """The names of the arguments that are given by position."""
    paths: list[str]
    """The names of the leaves."""
    leaves: list[TorchValue]
    wrt: list[int] = field(default_factory=list)
    """Leaves that it can be differentiated with respect to."""
    wrt_state: list[str] = field(default_factory=list)
    """Names that are not arguments: of parameters and buffers."""
    bounds: dict[int, dict[int, Bounds]] = field(default_factory=dict)
    """For each tensor by its identity, the bounds of sizes that may vary."""

    @property
    def names(self) -> list[str]:
        """The names of the arguments."""
        return [*self.positional, *self.kwargs]

    def axes(self, tensor: torch.Tensor) -> list[bool]:
        """Which sizes of a tensor may vary."""
        known = self.bounds.get(id(tensor), {})
        return [axis in known for axis in range(tensor.dim())]

    def with_leaves(self, leaves: list[object], made: Mapping[int, torch.Tensor]) -> Asked:
        """The same, asked of other leaves; `made`: those in the place of others, by identity."""
        _, spec = trees.flatten((self.args, self.kwargs))
        args, kwargs = trees.unflatten(leaves, spec)
        bounds = {id(made[key]): table for key, table in self.bounds.items() if key in made}
        return replace(self, args=args, kwargs=kwargs, leaves=leaves, bounds=bounds)

    def name_of(self, tensor: torch.Tensor) -> str:
        """The name of an argument, or of a part of one."""
        pairs = zip(self.paths, self.leaves, strict=True)
        return next((path for path, leaf in pairs if leaf is tensor), "a tensor")

    def bounds_of(self, tensor: torch.Tensor, axis: int) -> Bounds:
        return self.bounds.get(id(tensor), {}).get(axis, ANY)


def asked_for(
    function: Callable[..., object],
    args: tuple[object, ...],
    kwargs: dict[str, object],
    dynamic: bool | Mapping[str, object],
    wrt: Sequence[str] | None,
    orders: int = 1,
) -> Asked:
    """The arguments, detached from any history, and what is asked of them."""
    positional = _positional_names(function, len(args))
    given, spec = trees.flatten_with_paths((args, kwargs))
    paths = [_path(path, positional) for path, _ in given]
    leaves = [leaf for _, leaf in given]
    chosen, others = _chosen(paths, leaves, positional, wrt)
    made: list[object] = []
    seen: dict[int, torch.Tensor] = {}
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor):
            if type(leaf) not in (torch.Tensor, torch.nn.Parameter):
                raise ExportError(
                    f"{paths[place]} is a {type(leaf).__name__}, and a program is exported for "
                    "plain tensors: pass the tensors inside it"
                )
            plain = seen.get(id(leaf))
            if plain is None:
                plain = seen[id(leaf)] = leaf.detach()
            has_derivatives = leaf.is_floating_point() or leaf.is_complex()
            if leaf.requires_grad or (place in chosen and orders and has_derivatives):
                plain.requires_grad_()
            made.append(plain)
        else:
            made.append(leaf)
    plain_args, plain_kwargs = trees.unflatten(made, spec)
    asked = Asked(plain_args, plain_kwargs, positional, paths, made, chosen, others)
    _set_bounds(asked, dynamic)
    return asked


def _positional_names(function: Callable[..., object], count: int) -> tuple[str, ...]:
    """The names of the first `count` arguments."""
    target = function.forward if isinstance(function, torch.nn.Module) else function
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        parameters = ()  # type: ignore[assignment]
    names = [
        each.name
        for each in parameters
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    names += [f"args[{place}]" for place in range(len(names), count)]
    return tuple(names[:count])


def _path(path: str, positional: Sequence[str]) -> str:
    """`[0][1]['x']` of (args, kwargs) as `name['x']`, and `[1]['y']` as `y`."""
    kind, _, rest = path[1:].partition("]")
    first, _, inner = rest[1:].partition("]")
    if kind == "0":
        return positional[int(first)] + inner
    return first.strip("'\"") + inner


def _chosen(
    paths: Sequence[str],
    leaves: Sequence[TorchValue],
    positional: Sequence[str],
    wrt: Sequence[str] | None,
) -> tuple[list[int], list[str]]:
    """Leaves to differentiate with respect to, and names in `wrt` that are not arguments."""
    floating = [place for place, leaf in enumerate(leaves) if is_floating(leaf)]
    if wrt is None:
        return [p for p in floating if leaves[p].requires_grad] or floating, []
    if isinstance(wrt, str):
        raise ExportError(f"wrt={wrt!r}: give a sequence of names")
    found: list[int] = []
    others: list[str] = []
    for name in wrt:
        inside = [p for p, path in enumerate(paths) if path == name or path.startswith(f"{name}[")]
        tensors = [p for p in inside if isinstance(leaves[p], torch.Tensor)]
        if inside and not tensors:
            raise ExportError(f"wrt has {name!r}, which is no tensor")
        found += tensors
        if not inside:
            others.append(name)
    return sorted(set(found)), others


def _set_bounds(asked: Asked, dynamic: bool | Mapping[str, object]) -> None:
    if dynamic is True:
        for leaf in asked.leaves:
            if isinstance(leaf, torch.Tensor):
                asked.bounds[id(leaf)] = dict.fromkeys(range(leaf.dim()), ANY)
        return
    if dynamic is False:
        return
    if not isinstance(dynamic, Mapping):
        raise ExportError(f"dynamic={dynamic!r}; choose True, False, or axes of arguments by name")
    for name, axes in dynamic.items():
        inside = [
            leaf
            for path, leaf in zip(asked.paths, asked.leaves, strict=True)
            if (path == name or path.startswith(f"{name}[")) and isinstance(leaf, torch.Tensor)
        ]
        if not inside:
            raise ExportError(
                f"dynamic has {name!r}, which is no tensor among {', '.join(asked.paths)}"
            )
        for tensor in inside:
            asked.bounds.setdefault(id(tensor), {}).update(_bounds(name, tensor, axes))


def _bounds(name: str, tensor: torch.Tensor, axes: TorchValue) -> dict[int, Bounds]:
    if axes is True:
        axes = range(tensor.dim())
    elif axes is False or axes is None:
        axes = ()
    table = axes if isinstance(axes, Mapping) else dict.fromkeys(axes, True)
    found: dict[int, Bounds] = {}
    for axis, bounds in table.items():
        if type(axis) is not int or not -tensor.dim() <= axis < tensor.dim():
            raise ExportError(f"dynamic has axis {axis!r} of {name}, which has {tensor.dim()} axes")
        if bounds is False:
            continue
        least, most = ANY if bounds is True or bounds is None else bounds
        size = tensor.shape[axis]
        if size < least or (most is not None and size > most):
            raise ExportError(
                f"the example {name} has the size {size} along axis {axis}, which is outside of "
                f"its bounds {bounds}"
            )
        found[axis % tensor.dim()] = (least, most)
    return found
