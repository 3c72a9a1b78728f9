"""Are the derivatives of a compiled program eager's: value and each order, by random projections.

`check(function, inputs, order)` runs the function once in eager and once captured behind the
autograd bridge, asks autograd for derivatives of both with the same random cotangents, and
compares.  Where eager has no derivative of some order, finite differences take its place.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch import fx
from torch.utils import _pytree

import adjoint
from adjoint.compiler import Compiler
from adjoint.differentiate.sweep import differentiate
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.purity import remove_dead_code
from adjoint.graph.verify import verify
from adjoint.options import Options
from adjoint.runtime.bridge import DifferentiableGraph
from adjoint.runtime.calling import call

Function = Callable[..., Any]
# Derivatives are compared with eager's, and so must be what is drawn on the way.
NATIVELY = Options(eager_rng=True)
OP_BY_OP = Options(target="reference")

# How far a derivative may be from eager's: it is computed by other ops.  In single precision, over
# all of torch's samples, the farthest is 1.04e-6 (relative to 1 + |eager's|, of `linalg.det`): what
# is allowed is ten times that, for other libraries of linear algebra.
TOLERANCE = {
    torch.float64: 1e-7,
    torch.complex128: 1e-7,
    torch.float32: 1e-5,
    torch.complex64: 1e-5,
}

# In what a difference from eager in single precision is judged.
IN_DOUBLE = {torch.float32: torch.float64, torch.complex64: torch.complex128}

# The step of a finite difference in float64, and how far from it a derivative may be.
STEP = 1e-6
ROUGHLY = 1e-4


class Through(enum.Enum):
    """How a function is compiled."""

    BRIDGE = "bridge"
    DYNAMO = "dynamo"
    """Where a program reads data in Python, which only graph breaks allow."""


@dataclass(frozen=True)
class Bridged:
    """A captured function behind the autograd bridge, called as the function it was made of."""

    captured: CapturedProgram
    graph: DifferentiableGraph

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        leaves = _pytree.tree_leaves((args, kwargs))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        results = call(self.graph, self.captured.calling, self.captured.leaves(tensors))
        assert self.captured.signature is not None
        return _pytree.tree_unflatten(results, self.captured.signature.out_spec)


def bridged(
    function: Function,
    *args: Any,
    dynamic: bool = False,
    options: Options = NATIVELY,
    **kwargs: Any,
) -> Bridged:
    """`function`, captured for arguments like these."""
    captured = adjoint.capture(function, *args, dynamic=dynamic, **kwargs)
    return Bridged(captured, DifferentiableGraph(captured.graph_module, Compiler(options)))


@dataclass
class Derivatives:
    """What one side of a comparison computed."""

    values: list[torch.Tensor] = field(default_factory=list)
    orders: list[list[torch.Tensor | None]] = field(default_factory=list)
    """For each order, the cotangents of the leaves it was taken with respect to."""
    error: Exception | None = None
    """Why there is no higher order."""


def check(
    function: Function,
    inputs: Sequence[Any],
    order: int,
    *,
    through: Through = Through.BRIDGE,
    seed: int = 0,
    tolerance: float | None = None,
    options: Options = NATIVELY,
    oracle: Function | None = None,
) -> Derivatives:
    """Values and derivatives up to `order` of `function(*inputs)` are eager's.

    Returns eager's derivatives.  `oracle`: the same function, by ops whose derivatives of every
    order eager knows.
    """
    mine, theirs = leaves_like(inputs), leaves_like(inputs)
    oracle = function if oracle is None else oracle
    expected = derivatives(oracle, theirs, order, seed)
    if expected.error is not None and len(expected.orders) == 1 and order > 1:
        # Eager cannot even give a first derivative that could be differentiated.
        error, expected = expected.error, derivatives(oracle, theirs, 1, seed)
        expected.error = error
    compiled: Function
    if through is Through.BRIDGE:
        compiled = bridged(function, *mine, options=options)
    else:
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="adjoint", options={"eager_rng": True})
    actual = derivatives(compiled, mine, order, seed)
    if actual.error is not None and expected.error is None:
        raise actual.error
    try:
        compare(actual, expected, tolerance)
    except AssertionError:
        if not any(each.dtype in IN_DOUBLE for each in _tensors(theirs)):
            raise
        # Eager may be the one that is off: the same in double precision decides.
        compare(actual, derivatives(oracle, _in_double(theirs), order, seed), tolerance)
    if expected.error is not None and actual.error is None:
        assert len(expected.orders) == 2, "only the second derivative is checked by differences"
        _check_finite_difference(compiled, mine, seed)
    return expected


def derivatives(
    function: Function, inputs: Sequence[Any], order: int, seed: int = 0
) -> Derivatives:
    """Value and derivatives, the cotangents drawn from `seed`.

    The first derivative is taken once more with respect to its own cotangents, too: it is linear in
    them, and a program that is differentiated twice must know.
    """
    found = Derivatives()
    torch.manual_seed(seed)
    heads = _tensors(function(*inputs))
    found.values = [head.detach().clone() for head in heads]
    flags = [head.requires_grad for head in heads]
    found.orders.append([torch.tensor(flag) for flag in flags])
    leaves = [leaf for leaf in _tensors(list(inputs)) if leaf.requires_grad]
    generator = torch.Generator().manual_seed(seed)
    for level in range(order):
        # One that does not require grad has a direction all the same: on one side it may.
        directions = [_random_like(head, generator) for head in heads]
        cotangents = [
            direction.requires_grad_(level + 1 < order)
            for head, direction in zip(heads, directions, strict=True)
            if head.requires_grad
        ]
        heads = [head for head in heads if head.requires_grad]
        if not heads or not leaves:
            break
        try:
            gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
                heads, leaves, cotangents, create_graph=level + 1 < order, allow_unused=True
            )
        except (RuntimeError, NotImplementedError) as error:
            found.error = error
            break
        found.orders.append([None if g is None else g.detach() for g in gradients])
        pairs = zip(leaves, gradients, strict=True)
        heads = [torch.zeros_like(leaf) if g is None else g for leaf, g in pairs]
        if level == 0:
            leaves = [*leaves, *cotangents]
    return found


def compare(actual: Derivatives, expected: Derivatives, tolerance: float | None = None) -> None:
    """The same values, and the same derivatives as far as both have them."""
    assert len(actual.values) == len(expected.values), "number of results"
    for mine, theirs in zip(actual.values, expected.values, strict=True):
        _assert_close(mine, theirs, tolerance, "value")
    for order, (some, others) in enumerate(zip(actual.orders, expected.orders, strict=False)):
        what = "requires_grad" if order == 0 else f"order {order}"
        for given, wanted in zip(some, others, strict=True):
            _assert_close(given, wanted, tolerance, what)
    # Where one side ends because nothing requires grad any more, the other is zero.
    longer = max(actual, expected, key=lambda each: len(each.orders))
    common = min(len(actual.orders), len(expected.orders))
    for some in [] if actual.error or expected.error else longer.orders[common:]:
        assert all(given is None or not given.any() for given in some), "no order is zero"


def leaves_like(inputs: Sequence[Any]) -> list[Any]:
    """The same inputs, each tensor a leaf of its own; a tensor that occurs twice still does."""
    made: dict[int, torch.Tensor] = {}

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) not in made:
            made[id(value)] = _copied(value).requires_grad_(value.requires_grad)
        return made[id(value)]

    return [_pytree.tree_map(leaf, each) for each in inputs]


def _in_double(inputs: Sequence[Any]) -> list[Any]:
    """The same inputs as leaves of twice the precision."""

    def leaf(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or value.dtype not in IN_DOUBLE:
            return value
        return value.detach().to(IN_DOUBLE[value.dtype]).requires_grad_(value.requires_grad)

    return [_pytree.tree_map(leaf, each) for each in inputs]


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of the tensor with all of its memory: some programs look beyond the tensor."""
    if tensor.layout is not torch.strided or type(tensor) is not torch.Tensor:
        return tensor.detach().clone()
    if tensor.is_conj():
        return _copied(tensor.conj()).conj()
    if tensor.is_neg():
        return torch._neg_view(_copied(torch._neg_view(tensor)))
    place = (tensor.storage_offset(), tensor.shape, tensor.stride())
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return empty.set_(tensor.untyped_storage().clone(), *place)


def assert_finite_difference(
    function: Callable[[Sequence[torch.Tensor]], torch.Tensor],
    inputs: Sequence[torch.Tensor],
    derivative: Sequence[torch.Tensor | None],
    tolerance: float = ROUGHLY,
) -> None:
    """`derivative` is that of the scalar `function`, along one random direction."""
    generator = torch.Generator().manual_seed(1)
    directions = [_random_like(each, generator) for each in inputs]
    sides = []
    for sign in (1, -1):
        moved = [
            (each.detach() + sign * STEP * way).requires_grad_(each.requires_grad)
            for each, way in zip(inputs, directions, strict=True)
        ]
        sides.append(function(moved).detach())
    numerical = (sides[0] - sides[1]) / (2 * STEP)
    parts = [
        (each.conj() * way).real.sum() if each.is_complex() else (each * way).sum()
        for each, way in zip(derivative, directions, strict=True)
        if each is not None
    ]
    analytical = sum(parts, torch.zeros((), dtype=numerical.dtype))
    torch.testing.assert_close(analytical, numerical, rtol=tolerance, atol=tolerance)


def _check_finite_difference(function: Function, inputs: Sequence[Any], seed: int) -> None:
    """The second derivative, which eager lacks, by differences of the first, which it has."""
    leaves = [leaf for leaf in _tensors(list(inputs)) if leaf.requires_grad]
    generator = torch.Generator().manual_seed(seed + 1)
    torch.manual_seed(seed)
    heads = [head for head in _tensors(function(*inputs)) if head.requires_grad]
    cotangents = [_random_like(head, generator) for head in heads]
    weights = [_random_like(leaf, generator) for leaf in leaves]

    def slope(at: Sequence[torch.Tensor], create_graph: bool = False) -> torch.Tensor:
        given = iter(at)
        moved = _pytree.tree_map(
            lambda x: next(given) if isinstance(x, torch.Tensor) and x.requires_grad else x,
            list(inputs),
        )
        torch.manual_seed(seed)
        results = [head for head in _tensors(function(*moved)) if head.requires_grad]
        gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(
            results, list(at), cotangents, create_graph=create_graph, allow_unused=True
        )
        pairs = zip(gradients, weights, strict=True)
        parts = [(g * w).sum() for g, w in pairs if g is not None]
        return torch.stack([part.real if part.is_complex() else part for part in parts]).sum()

    scalar = slope(leaves, create_graph=True)
    second: Sequence[torch.Tensor | None] = [None] * len(leaves)
    if scalar.requires_grad:
        second = torch.autograd.grad(scalar, leaves, allow_unused=True)
    assert_finite_difference(slope, leaves, second)


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _random_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The same numbers in each precision."""
    drawn = torch.complex128 if tensor.is_complex() else torch.float64
    return torch.randn(tensor.shape, dtype=drawn, generator=generator).to(tensor.dtype)


def _assert_close(mine: Any, theirs: Any, tolerance: float | None, what: str) -> None:
    if mine is None and theirs is None:
        return
    # No gradient is a gradient of zero.
    mine = torch.zeros_like(theirs) if mine is None else mine
    theirs = torch.zeros_like(mine) if theirs is None else theirs
    allowed = TOLERANCE.get(mine.dtype, 0.0) if tolerance is None else tolerance
    if IN_DOUBLE.get(mine.dtype) is theirs.dtype:
        theirs = theirs.to(mine.dtype)
    torch.testing.assert_close(
        mine, theirs, rtol=allowed, atol=allowed, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


def joint_of(
    function: Callable[..., Any],
    *args: Any,
    of: Sequence[int] = (0,),
    wrt: Sequence[int] = (0,),
    dynamic: bool = False,
) -> fx.GraphModule:
    """The joint graph, without what nothing needs."""
    joint = differentiate(
        adjoint.capture(function, *args, dynamic=dynamic).graph_module, of, wrt
    ).graph_module
    remove_dead_code(joint.graph)
    verify(joint)
    return joint


def reverse_nodes(joint: fx.GraphModule, order: int = 1) -> list[fx.Node]:
    return [node for node in joint.graph.nodes if node.meta.get("order") == order]


def targets(joint: fx.GraphModule) -> list[Any]:
    return [node.target for node in reverse_nodes(joint)]
