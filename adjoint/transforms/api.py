"""The transforms, with `torch.func`'s signatures where the two overlap."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from adjoint.errors import OutsideLevelError
from adjoint.torch_private import trees
from adjoint.trace.tracer import current_tracer
from adjoint.transforms.compiled import (
    Compiled,
    PullBack,
    left_to_torch,
    linearize,
    programs_of,
)
from adjoint.transforms.linear import Linearized

Function = Callable[..., Any]
ArgNums = int | tuple[int, ...]


def grad(function: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """The gradient of a scalar function, in the form of the arguments `argnums`."""

    def gradient(*args: Any, **kwargs: Any) -> Any:
        value, gradients = _value_and_grad(function, argnums, has_aux, args, kwargs)
        return (gradients, value[1]) if has_aux else gradients

    return Compiled(gradient, function, torch.func.grad(function, argnums, has_aux))


def value_and_grad(function: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """The value of a scalar function (or (value, aux)), then its gradient."""

    def both(*args: Any, **kwargs: Any) -> Any:
        return _value_and_grad(function, argnums, has_aux, args, kwargs)

    def traced(*args: Any, **kwargs: Any) -> Any:
        found = torch.func.grad_and_value(function, argnums, has_aux)(*args, **kwargs)
        return found[1], found[0]

    return Compiled(both, function, traced)


def _value_and_grad(
    function: Function, argnums: ArgNums, has_aux: bool, args: Any, kwargs: Any
) -> tuple[Any, Any]:
    chosen = _Chosen(args, argnums)
    point = linearize(chosen.of(function, kwargs), chosen.leaves)
    value, _ = _parts(point.value, has_aux)
    if not isinstance(value, torch.Tensor) or value.dim() != 0:
        shown = list(value.shape) if isinstance(value, torch.Tensor) else type(value).__name__
        raise RuntimeError(f"grad needs a function that returns a scalar tensor, not {shown}")
    if value.is_complex():
        raise RuntimeError(f"grad needs a function that returns a real number, not {value.dtype}")
    cotangents: list[torch.Tensor | None] = [None] * len(point.results)
    cotangents[0] = torch.ones_like(value)
    return point.value, chosen.packed(point.pull_back(cotangents))


def vjp(function: Function, *primals: Any, has_aux: bool = False) -> Any:
    """The value at `primals`, and the function from cotangents of it to cotangents of `primals`.

    With `has_aux`, the function returns (value, aux), and aux comes last here.
    """
    if left_to_torch():
        return torch.func.vjp(function, *primals, has_aux=has_aux)
    return _vjp(function, primals, has_aux)


@torch.compiler.disable  # type: ignore[untyped-decorator]
def _vjp(function: Function, primals: tuple[Any, ...], has_aux: bool) -> Any:
    def linearized(primals: tuple[Any, ...]) -> Linearized:
        chosen = _Chosen(primals, tuple(range(len(primals))))
        return linearize(chosen.of(function, {}), chosen.leaves)

    chosen = _Chosen(primals, tuple(range(len(primals))))
    if current_tracer() is not None:
        point = linearized(primals)
        returned, pull_back = point.value, point.pull_back
    else:
        make = functools.partial(PullBack, linearized, lambda given: _parts(given, has_aux)[0])
        try:
            programs = programs_of(function, ("vjp", has_aux))
            program, _ = programs.find(make, function, primals, {})
        except OutsideLevelError:
            return torch.func.vjp(function, *primals, has_aux=has_aux)
        returned, pull_back = program(primals)
    value, aux = _parts(returned, has_aux)
    results, spec = trees.flatten(value)
    others = len(trees.leaves(aux)) if has_aux else 0

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def vjp_fn(cotangents: Any) -> Any:
        given, form = trees.flatten(cotangents)
        if form != spec:
            raise RuntimeError(f"the value has the form {spec}, its cotangents have {form}")
        for result, cotangent in zip(results, given, strict=True):
            if cotangent.shape != result.shape:
                raise RuntimeError(
                    f"a value of shape {list(result.shape)} "
                    f"has a cotangent of shape {list(cotangent.shape)}"
                )
        return chosen.packed(pull_back([*given, *([None] * others)]))

    return (value, vjp_fn, aux) if has_aux else (value, vjp_fn)


def jvp(function: Function, primals: Any, tangents: Any, *, has_aux: bool = False) -> Any:
    """The value at `primals`, and its directional derivative along `tangents`."""

    def both(primals: Any, tangents: Any) -> Any:
        chosen = _Chosen(tuple(primals), tuple(range(len(primals))))
        point = linearize(chosen.of(function, {}), chosen.leaves)
        pushed = point.push_forward(chosen.tangents(tangents))
        return _with_aux(point, pushed, has_aux)

    programs = programs_of(function, ("jvp", has_aux))
    traced = functools.partial(torch.func.jvp, function, has_aux=has_aux)
    return Compiled(both, function, traced, programs)(primals, tangents)


def hvp(function: Function, primals: Any, tangents: Any) -> Any:
    """The value of a scalar function, and its Hessian at `primals` applied to `tangents`."""
    argnums = tuple(range(len(primals)))

    def both(primals: Any, tangents: Any) -> Any:
        def gradients(*args: Any) -> Any:
            return _value_and_grad(function, argnums, False, args, {})

        chosen = _Chosen(tuple(primals), argnums)
        point = linearize(chosen.of(gradients, {}), chosen.leaves)
        pushed = point.push_forward(chosen.tangents(tangents))
        return point.value[0], chosen.packed(pushed[1:])

    def traced(primals: Any, tangents: Any) -> Any:
        gradients = torch.func.grad_and_value(function, argnums)
        both: Any = torch.func.jvp(gradients, tuple(primals), tuple(tangents))
        (_, value), (product, _) = both
        return value, product

    programs = programs_of(function, "hvp")
    return Compiled(both, function, traced, programs)(primals, tangents)


def jacrev(
    function: Function,
    argnums: ArgNums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
) -> Function:
    """The Jacobian, by rows; `chunk_size` of them at a time."""

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

            shapes = [(*result.shape, *leaf.shape) for leaf in chosen.leaves]
            if result.numel() == 0:
                parts = [leaf.new_zeros(s) for leaf, s in zip(chosen.leaves, shapes, strict=True)]
            else:
                stacked = torch.func.vmap(row, chunk_size=chunk_size)(_basis(result))
                parts = [each.view(shape) for each, shape in zip(stacked, shapes, strict=True)]
            rows.append(chosen.packed(parts))
        packed = trees.unflatten(rows, spec)
        return (packed, aux) if has_aux else packed

    traced = torch.func.jacrev(function, argnums, has_aux=has_aux, chunk_size=chunk_size)
    return Compiled(jacobian, function, traced)


def jacfwd(function: Function, argnums: ArgNums = 0, has_aux: bool = False) -> Function:
    """The Jacobian, by columns."""

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

            shapes = [(*result.shape, *leaf.shape) for result in results]
            if leaf.numel() == 0:
                parts = [each.new_zeros(s) for each, s in zip(results, shapes, strict=True)]
            else:
                stacked = torch.func.vmap(column)(_basis(leaf))
                pairs = zip(stacked, shapes, strict=True)
                parts = [each.movedim(0, -1).reshape(shape) for each, shape in pairs]
            for into, part in zip(columns, parts, strict=True):
                into.append(part)
        packed = trees.unflatten([chosen.packed(parts) for parts in columns], spec)
        return (packed, aux) if has_aux else packed

    # By rows: torch's forward mode does not run on fake tensors under more than one `vmap`.
    traced = torch.func.jacrev(function, argnums, has_aux=has_aux)
    return Compiled(jacobian, function, traced)


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

    def tangents(self, given: Any) -> list[torch.Tensor]:
        """The leaves of `given`, one for each chosen leaf."""
        tangents, spec = trees.flatten(tuple(given))
        if spec != self.spec:
            raise RuntimeError(f"the primals have the form {self.spec}, the tangents have {spec}")
        for leaf, tangent in zip(self.leaves, tangents, strict=True):
            if leaf.shape != tangent.shape:
                raise RuntimeError(
                    f"a primal of shape {list(leaf.shape)} "
                    f"has a tangent of shape {list(tangent.shape)}"
                )
        return tangents

    def packed(self, leaves: Sequence[Any]) -> Any:
        """`leaves` in the form of the chosen arguments."""
        packed = trees.unflatten(list(leaves), self.spec)
        return packed[0] if self.single else packed


def _parts(returned: Any, has_aux: bool) -> tuple[Any, Any]:
    """What a function returned, as its value and what it gives besides."""
    if not has_aux:
        return returned, None
    if not (isinstance(returned, tuple) and len(returned) == 2):
        raise RuntimeError("has_aux needs a function that returns (value, aux)")
    return returned


def _with_aux(point: Any, pushed: list[torch.Tensor], has_aux: bool) -> Any:
    value, aux = _parts(point.value, has_aux)
    leaves, spec = trees.flatten(value)
    pushed_value = trees.unflatten(pushed[: len(leaves)], spec)
    return (value, pushed_value, aux) if has_aux else (value, pushed_value)


def _jacobian_results(point: Any, has_aux: bool) -> tuple[list[torch.Tensor], Any, Any]:
    value, aux = _parts(point.value, has_aux)
    results, spec = trees.flatten(value)
    if not all(isinstance(each, torch.Tensor) for each in results):
        raise RuntimeError("a Jacobian is of a function that returns tensors")
    return results, spec, aux


def _basis(like: torch.Tensor) -> torch.Tensor:
    size = like.numel()
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.view((size, *like.shape))
