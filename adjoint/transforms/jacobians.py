"""Jacobians: a derivative at a point, applied to each vector of a basis."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import torch

from adjoint.open_types import UserFunction
from adjoint.torch_private import trees
from adjoint.transforms import contract
from adjoint.transforms.arguments import ChosenArguments
from adjoint.transforms.compiled import Compiled, OptionMapping, Setting, linearized
from adjoint.transforms.contract import ArgNums
from adjoint.transforms.linear import Linearized

# For each result, the derivatives with respect to each input.
Blocks: TypeAlias = list[list[torch.Tensor]]


def jacrev(
    function: Callable[..., object],
    argnums: ArgNums = 0,
    *,
    has_aux: bool = False,
    chunk_size: int | None = None,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> UserFunction:
    """The Jacobian, by rows; `chunk_size` of them at a time.

    >>> import torch, adjoint
    >>> adjoint.jacrev(lambda x: x * x)(torch.tensor([1.0, 2.0]))
    tensor([[2., 0.],
            [0., 4.]])
    """
    contract.check_chunk_size("jacrev", chunk_size)

    def blocks(
        point: Linearized, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> Blocks:
        return [_rows(point, inputs, results, place, chunk_size) for place in range(len(results))]

    def in_torch(function: Callable[..., object]) -> UserFunction:
        return torch.func.jacrev(function, argnums, has_aux=has_aux, chunk_size=chunk_size)

    jacobian = _jacobian("jacrev", function, argnums, has_aux, blocks)
    key = ("jacrev", argnums, has_aux, chunk_size)
    return _compiled(key, jacobian, function, in_torch(function), in_torch, dynamic, options)


def jacfwd(
    function: Callable[..., object],
    argnums: ArgNums = 0,
    has_aux: bool = False,
    *,
    randomness: str = "error",
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> UserFunction:
    """The Jacobian, by columns.

    `randomness`: whether the function may draw random numbers (not if "error"), and whether each
    column has its own ("different") or all have the same.

        >>> import torch, adjoint
        >>> adjoint.jacfwd(lambda x: x * x)(torch.tensor([1.0, 2.0]))
        tensor([[2., 0.],
                [0., 4.]])
    """

    def blocks(
        point: Linearized, inputs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]
    ) -> Blocks:
        if randomness == "error" and point.draws:
            raise RuntimeError(
                "jacfwd: called random operation while in randomness error mode. Please either "
                "use the 'same' or 'different' randomness flags"
            )
        columns = [_columns(point, inputs, results, place) for place in range(len(inputs))]
        return [[column[place] for column in columns] for place in range(len(results))]

    def in_torch(function: Callable[..., object]) -> UserFunction:
        return torch.func.jacfwd(function, argnums, has_aux, randomness=randomness)

    if randomness == "different":
        return in_torch(function)
    jacobian = _jacobian("jacfwd", function, argnums, has_aux, blocks)
    # By rows: torch's forward mode does not run on fake tensors under more than one `vmap`.
    traced = torch.func.jacrev(function, argnums, has_aux=has_aux)
    key = ("jacfwd", argnums, has_aux, randomness)
    return _compiled(key, jacobian, function, traced, in_torch, dynamic, options)


def hessian(
    function: Callable[..., object],
    argnums: ArgNums = 0,
    *,
    dynamic: bool | None = None,
    options: OptionMapping = None,
) -> UserFunction:
    """The matrix of second derivatives.

    >>> import torch, adjoint
    >>> adjoint.hessian(lambda x: (x**3).sum())(torch.tensor([1.0, 2.0]))
    tensor([[ 6.,  0.],
            [ 0., 12.]])
    """
    return jacfwd(jacrev(function, argnums), argnums, dynamic=dynamic, options=options)


def _jacobian(
    name: str,
    function: Callable[..., object],
    argnums: ArgNums,
    has_aux: bool,
    blocks_of: Callable[[Linearized, Sequence[torch.Tensor], Sequence[torch.Tensor]], Blocks],
) -> UserFunction:
    """The Jacobian inside a capture, in the form of the results and the chosen arguments."""
    forward = name == "jacfwd"
    signature = contract.JVP if forward else contract.VJP

    def jacobian(*args: object, **kwargs: object) -> object:
        contract.check_real(args, name, "inputs")
        chosen = ChosenArguments.named(args, argnums)
        point = linearized(chosen.of(function, kwargs), chosen.leaves, forward)
        value, aux = contract.parts(point.value, has_aux, signature)
        results, form = contract.tensors(value, signature)
        if not forward:
            contract.check_differentiable(results)
        contract.check_real(results, name, "outputs")
        blocks = blocks_of(point, chosen.leaves, results)
        packed = trees.unflatten([chosen.packed(parts) for parts in blocks], form)
        return (packed, aux) if has_aux else packed

    return jacobian


def _compiled(
    key: Hashable,
    jacobian: Callable[..., object],
    function: Callable[..., object],
    traced: Callable[..., object],
    in_torch: Callable[[UserFunction], UserFunction],
    dynamic: bool | None,
    options: OptionMapping,
) -> UserFunction:
    """`in_torch`: torch's transform, which may pass no keyword arguments to the function."""

    def eager(*args: object, **kwargs: object) -> object:
        return in_torch(functools.partial(function, **kwargs) if kwargs else function)(*args)

    setting = Setting(dynamic, options)
    return Compiled(key, jacobian, function, traced, in_torch=eager, setting=setting)


def _rows(
    point: Linearized,
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    place: int,
    chunk_size: int | None,
) -> list[torch.Tensor]:
    """The derivatives of one result with respect to each input."""
    result = results[place]

    def row(cotangent: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cotangents: list[torch.Tensor | None] = [None] * len(point.results)
        cotangents[place] = cotangent
        return tuple(point.pull_back(cotangents))

    shapes = [(*result.shape, *each.shape) for each in inputs]
    if result.numel() == 0:
        return [each.new_zeros(shape) for each, shape in zip(inputs, shapes, strict=True)]
    stacked = map(_written_out, torch.func.vmap(row, chunk_size=chunk_size)(_basis(result)))
    return [each.view(shape) for each, shape in zip(stacked, shapes, strict=True)]


def _columns(
    point: Linearized,
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    place: int,
) -> list[torch.Tensor]:
    """The derivatives of each result with respect to one input."""
    along = inputs[place]

    def column(tangent: torch.Tensor) -> tuple[torch.Tensor, ...]:
        tangents = [torch.zeros_like(each) for each in inputs]
        tangents[place] = tangent
        return tuple(point.push_forward(tangents)[: len(results)])

    shapes = [(*each.shape, *along.shape) for each in results]
    if along.numel() == 0:
        return [each.new_zeros(shape) for each, shape in zip(results, shapes, strict=True)]
    stacked = map(_written_out, torch.func.vmap(column)(_basis(along)))
    return [each.movedim(0, -1).reshape(shape) for each, shape in zip(stacked, shapes, strict=True)]


def _written_out(stacked: torch.Tensor) -> torch.Tensor:
    """`stacked` with memory for each row: `vmap` expands what is the same for all vectors, such as
    a block of zeros, but users write to Jacobians, to their diagonals for instance."""
    step = stacked.stride(0)
    return stacked.clone() if type(step) is int and step == 0 else stacked


def _basis(like: torch.Tensor) -> torch.Tensor:
    size = like.numel()
    eye = torch.eye(size, dtype=like.dtype, device=like.device)
    return eye.view((size, *like.shape))
