"""The transforms, with `torch.func`'s signatures where the two overlap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from adjoint.torch_private import trees
from adjoint.transforms.compiled import Compiled, linearize

Function = Callable[..., Any]
ArgNums = int | tuple[int, ...]


def grad(function: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """The gradient of a scalar function, in the form of the arguments `argnums`."""

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, gradients = _value_and_grad(function, argnums, has_aux, args, kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return Compiled(gradient, function)


def value_and_grad(function: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """The value of a scalar function (or (value, aux)), then its gradient."""

    def both(*args: Any, **kwargs: Any) -> Any:
        return _value_and_grad(function, argnums, has_aux, args, kwargs)

    return Compiled(both, function)


def _value_and_grad(
    function: Function, argnums: ArgNums, has_aux: bool, args: Any, kwargs: Any
) -> tuple[Any, Any]:
    chosen = _Chosen(args, argnums)
    point = linearize(chosen.of(function, kwargs), chosen.leaves)
    if has_aux and not (isinstance(point.value, tuple) and len(point.value) == 2):
        raise RuntimeError("has_aux needs a function that returns (value, aux)")
    value = point.value[0] if has_aux else point.value
    if not isinstance(value, torch.Tensor) or value.dim() != 0:
        shown = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise RuntimeError(f"grad needs a function that returns a scalar tensor, not {shown}")
    cotangents: list[torch.Tensor | None] = [None] * len(point.results)
    cotangents[0] = torch.ones_like(value)
    return point.value, chosen.packed(point.pull_back(cotangents))


def vjp(function: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The value at `primals`, and the function from cotangents of it to cotangents of `primals`."""
    raise NotImplementedError(function, primals, has_aux)


def jvp(function: Function, primals: Any, tangents: Any, *, has_aux: bool = False) -> Any:
    """The value at `primals`, and its directional derivative along `tangents`."""

    def both(primals: Any, tangents: Any) -> Any:
        chosen = _Chosen(tuple(primals), tuple(range(len(primals))))
        point = linearize(chosen.of(function, {}), chosen.leaves)
        pushed = point.push_forward(_tensors(tuple(tangents)))
        return _with_aux(point, pushed, has_aux)

    return Compiled(both, function)(primals, tangents)


def hvp(function: Function, primals: Any, tangents: Any) -> Any:
    """The value of a scalar function, and its Hessian at `primals` applied to `tangents`."""
    argnums = tuple(range(len(primals)))

    def both(primals: Any, tangents: Any) -> Any:
        def gradients(*args: Any) -> Any:
            return _value_and_grad(function, argnums, False, args, {})

        chosen = _Chosen(tuple(primals), argnums)
        point = linearize(chosen.of(gradients, {}), chosen.leaves)
        pushed = point.push_forward(_tensors(tuple(tangents)))
        return point.value[0], chosen.packed(pushed[1:])

    return Compiled(both, function)(primals, tangents)


def jacrev(function: Function, argnums: ArgNums = 0, *, has_aux: bool = False) -> Function:
    """The Jacobian, a row at a time."""

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen = _Chosen(args, argnums)
        point = linearize(chosen.of(function, kwargs), chosen.leaves)
        results, spec, aux = _jacobian_results(point, has_aux)
        rows: list[Any] = []
        for place, result in enumerate(results):

            def row(cotangent: torch.Tensor, place: int = place) -> tuple[torch.Tensor, ...]:
                cotangents: list[torch.Tensor | None] = [None] * len(point.results)
                cotangents[place] = cotangent
                return tuple(point.pull_back(cotangents))

            stacked = torch.func.vmap(row)(_basis(result))
            parts = [
                each.view(*result.shape, *leaf.shape)
                for each, leaf in zip(stacked, chosen.leaves, strict=True)
            ]
            rows.append(chosen.packed(parts))
        packed = trees.unflatten(rows, spec)
        return (packed, aux) if has_aux else packed

    return Compiled(jacobian, function)


def jacfwd(function: Function, argnums: ArgNums = 0, *, has_aux: bool = False) -> Function:
    """The Jacobian, a column at a time."""

    def jacobian(*args: Any, **kwargs: Any) -> Any:
        chosen = _Chosen(args, argnums)
        point = linearize(chosen.of(function, kwargs), chosen.leaves)
        results, spec, aux = _jacobian_results(point, has_aux)
        columns: list[list[torch.Tensor]] = [[] for _ in results]
        for place, leaf in enumerate(chosen.leaves):

            def column(tangent: torch.Tensor, place: int = place) -> tuple[torch.Tensor, ...]:
                tangents = [torch.zeros_like(each) for each in chosen.leaves]
                tangents[place] = tangent
                return tuple(point.push_forward(tangents)[: len(results)])

            stacked = torch.func.vmap(column)(_basis(leaf))
            for into, each, result in zip(columns, stacked, results, strict=True):
                into.append(each.movedim(0, -1).reshape(*result.shape, *leaf.shape))
        packed = trees.unflatten([chosen.packed(parts) for parts in columns], spec)
        return (packed, aux) if has_aux else packed

    return Compiled(jacobian, function)


def hessian(function: Function, argnums: ArgNums = 0) -> Function:
    """The matrix of second derivatives."""
    return jacfwd(jacrev(function, argnums), argnums)


class _Chosen:
    """The arguments that a transform is with respect to."""

    def __init__(self, args: tuple[Any, ...], argnums: ArgNums) -> None:
        self.args = args
        self.single = isinstance(argnums, int)
        self.places = (argnums,) if isinstance(argnums, int) else tuple(argnums)
        for place in self.places:
            if not -len(args) <= place < len(args):
                raise RuntimeError(f"argnums={argnums}, but there are {len(args)} arguments")
        chosen = tuple(args[place] for place in self.places)
        self.leaves, self.spec = trees.flatten(chosen)
        for leaf in self.leaves:
            if not isinstance(leaf, torch.Tensor) or not (
                leaf.is_floating_point() or leaf.is_complex()
            ):
                shown = leaf.dtype if isinstance(leaf, torch.Tensor) else type(leaf).__name__
                raise RuntimeError(f"a derivative is with respect to real tensors, not {shown}")

    def of(self, function: Function, kwargs: dict[str, Any]) -> Function:
        """`function` of the chosen leaves alone."""

        def on_leaves(*leaves: torch.Tensor) -> Any:
            args = list(self.args)
            for place, value in zip(
                self.places, trees.unflatten(list(leaves), self.spec), strict=True
            ):
                args[place] = value
            return function(*args, **kwargs)

        return on_leaves

    def packed(self, leaves: Sequence[Any]) -> Any:
        """`leaves` in the form of the chosen arguments."""
        packed = trees.unflatten(list(leaves), self.spec)
        return packed[0] if self.single else packed


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in trees.leaves(tree) if isinstance(leaf, torch.Tensor)]


def _with_aux(point: Any, pushed: list[torch.Tensor], has_aux: bool) -> Any:
    if not has_aux:
        return point.value, trees.unflatten(pushed, point.spec)
    value, aux = point.value
    leaves, spec = trees.flatten(value)
    return value, trees.unflatten(pushed[: len(leaves)], spec), aux


def _jacobian_results(point: Any, has_aux: bool) -> tuple[list[torch.Tensor], Any, Any]:
    value, aux = point.value if has_aux else (point.value, None)
    results, spec = trees.flatten(value)
    if not all(isinstance(each, torch.Tensor) for each in results):
        raise RuntimeError("a Jacobian is of a function that returns tensors")
    return results, spec, aux


def _basis(like: torch.Tensor) -> torch.Tensor:
    size = like.numel()
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.view(size, *like.shape)
