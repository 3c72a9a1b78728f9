"""Forward mode of every op that torch can differentiate, from its reverse rule alone."""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._utils import wrapper_set_seed
from torch.utils import _pytree

import adjoint
from adjoint.errors import CaptureError, FallbackWarning
from tests.differentiate.test_opinfo import (
    EXCEPTIONS,
    READS_DATA,
    SAMPLES,
    call,
    name_of,
    ops_of,
    unseeded,
)
from tests.differentiation import ROUGHLY, STEP, TOLERANCE

func: Any = torch.func
Function = Callable[..., Any]

# One op of so many is checked in each run of the tests; `make test-all` checks them all.
SHARD = 48

# The Hessian of such an op alone takes longer than all others in the shard.
LONG = {"nn.functional.ctc_loss"}

# A Jacobian of more columns than this takes long; it is left out.
COLUMNS = 500

# Forward mode alone is not as it should be, and why.
FORWARD_EXCEPTIONS = {
    "sparse.sampled_addmm": "torch cannot differentiate a mask of a CSR tensor",
    "sparse.mm.reduce": "torch has no derivative of its gradient, of a CSR tensor",
    "narrow": "from a place that data tell: two slices are not known to be of one length",
    "masked_select": "jacfwd: torch cannot batch an op whose size depends on data, traced",
    "to_sparse": "jacfwd: torch cannot batch a sparse tensor",
    "combinations": "jacfwd: as masked_select",
}

# torch's forward derivative is not the transpose of its reverse one, to which ours is compared.
TWO_ANSWERS = {
    "nn.functional.linear_cross_entropy.chunked": "the forward one is zero",
    "nn.functional.linear_cross_entropy.chunked_none": "the forward one is zero",
    "scatter_reduce.prod": "the forward one is zero",
    "logcumsumexp": "the forward one loses half of the digits where exponentials vanish",
    "triangular_solve": "that of the gradient fails finite differences",
    "nn.functional.max_unpool1d": "where indices repeat, the last value wins in forward mode alone",
    "nn.functional.max_unpool2d": "where indices repeat, the last value wins in forward mode alone",
    "nn.functional.max_unpool3d": "where indices repeat, the last value wins in forward mode alone",
}

# Sampled where the op has a kink, or differentiated otherwise than it is computed, on purpose.
NOT_THE_SLOPE: dict[str, str] = {
    "nn.functional.linear_cross_entropy.chunked": "its gradient is a constant to eager",
    "nn.functional.linear_cross_entropy.chunked_none": "its gradient is a constant to eager",
    "normal": "a draw has no derivative in eager",
    "normal.number_mean": "a draw has no derivative in eager",
    "linalg.norm.subgradients_at_zero": "sampled at its kink",
    "nn.functional.cosine_embedding_loss": "it steps with the target",
    "nn.functional.hinge_embedding_loss": "it steps with the target",
    "grid_sampler_3d": "sampled on the edges of cells, where it has kinks",
    "nn.functional.ctc_loss": "its gradient takes for granted that probabilities sum to one",
    "nn.functional.max_unpool1d": "where indices repeat, overwritten values have a gradient",
    "nn.functional.max_unpool2d": "where indices repeat, overwritten values have a gradient",
    "nn.functional.max_unpool3d": "where indices repeat, overwritten values have a gradient",
}


def cases() -> list[Any]:
    """All ops; those that are not in the shard, or take long, are slow."""
    return [
        pytest.param(
            op,
            id=name_of(op),
            marks=[] if index % SHARD == 0 and name_of(op) not in LONG else [pytest.mark.slow],
        )
        for index, op in enumerate(ops_of(torch.float64))
    ]


def floating(tree: Any) -> list[Tensor]:
    """The results that may have a derivative, as real numbers."""
    tensors = [leaf for leaf in _pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
    tensors = [each.to_dense() if each.layout is not torch.strided else each for each in tensors]
    tensors = [torch.view_as_real(t.resolve_conj()) if t.is_complex() else t for t in tensors]
    return [each for each in tensors if each.is_floating_point()]


def functions_of(op: Any) -> Iterator[tuple[Function, tuple[Tensor, ...]]]:
    """For each sample: the op as a function of the tensors it is differentiated by, and those."""
    torch.manual_seed(0)
    samples = op.sample_inputs("cpu", torch.float64, requires_grad=True)
    for sample in itertools.islice(samples, SAMPLES):
        leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        leaves = [
            x.detach().requires_grad_(x.requires_grad) if isinstance(x, Tensor) else x
            for x in leaves
        ]
        places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
        given = [leaves[place] for place in places]
        plain = [x.detach() if isinstance(x, Tensor) else x for x in leaves]
        function = functools.partial(as_checked, op, sample, spec, plain, places)
        yield function, tuple(x.detach() for x in given)


def as_checked(
    op: Any, sample: Any, spec: Any, leaves: list[Any], places: list[int], *given: Any
) -> list[Tensor]:
    """The op in the form in which torch, too, has its slope equal its derivative: one that reads
    half of a symmetric matrix is given one.
    """
    return floating(call(Wrapped(op), sample, spec, leaves, places, *given))


@dataclass(frozen=True)
class Wrapped:
    """An op of torch's table, with the wrapper by which torch checks its gradient."""

    info: Any

    def op(self, *args: Any, **kwargs: Any) -> Any:
        if self.info.gradcheck_wrapper is wrapper_set_seed:
            return self.info.op(*args, **kwargs)  # The generator is as it is; see `unseeded`.
        return self.info.gradcheck_wrapper(self.info.op, *args, **kwargs)


def drawn_like(tensors: Sequence[Tensor], seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(t.shape, dtype=t.dtype, generator=generator) for t in tensors)


def assert_slope(
    found: Sequence[Tensor],
    function: Function,
    at: Sequence[Tensor],
    along: Sequence[Tensor],
    what: str,
    has_slope: Iterable[bool] = itertools.repeat(True),
) -> None:
    """What was found is the derivative of `function` along a direction, by finite differences.

    Results of less precision than the step are left out, and those to which eager gives no
    derivative.
    """
    sides = []
    for sign in (1, -1):
        torch.manual_seed(0)
        sides.append(function(*(x + sign * STEP * v for x, v in zip(at, along, strict=True))))
    for mine, one, other, defined in zip(found, *sides, has_slope, strict=False):
        if one.dtype is torch.float64 and defined:
            close(mine, (one - other) / (2 * STEP), f"{what} by differences", ROUGHLY)


def inner(some: Sequence[Tensor], others: Sequence[Tensor]) -> Tensor:
    """The inner product of two lists of tensors."""
    products = [(x * y).sum() for x, y in zip(some, others, strict=True)]
    return torch.stack([each.double() for each in products]).sum()


def gradients(loss: Function) -> Function:
    """By eager autograd."""

    def found(*given: Tensor) -> tuple[Tensor, ...]:
        leaves = [each.detach().clone().requires_grad_() for each in given]
        value = loss(*leaves)
        if not value.requires_grad:
            return tuple(torch.zeros_like(each) for each in given)
        return torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True)

    return found


def close(mine: Any, theirs: Any, what: str, allowed: float = TOLERANCE[torch.float64]) -> None:
    torch.testing.assert_close(
        mine, theirs, rtol=allowed, atol=allowed, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )


def torchs(function: Function) -> Any:
    """What torch.func answers; None where it has no derivative."""
    torch.manual_seed(0)
    try:
        return function()
    except (RuntimeError, NotImplementedError, IndexError):
        return None


def check_op(op: Any) -> None:
    name, checked = name_of(op), 0
    for function, primals in functions_of(op):
        if not primals:
            continue
        checked += 1
        tangents = drawn_like(primals, 1)
        try:
            with unseeded():
                check_jvp(function, primals, tangents, name)
                check_hvp(function, primals, tangents, name)
                check_jacfwd(function, primals, name)
        except (CaptureError, FallbackWarning):
            # A transform has no graph breaks: it refuses, or leaves all of it to torch.
            assert name in READS_DATA
    assert checked, "torch has no sample of the op"


def check_jvp(function: Function, primals: Any, tangents: Any, name: str) -> None:
    torch.manual_seed(0)
    value, pushed = adjoint.jvp(function, primals, tangents)
    torch.manual_seed(0)
    close(value, function(*primals), "value")
    theirs = None
    if name not in TWO_ANSWERS:
        theirs = torchs(lambda: func.jvp(function, primals, tangents))
    if theirs is None:
        cotangents = list(drawn_like(pushed, 3))
        torch.manual_seed(0)
        pulled = gradients(lambda *given: inner(cotangents, function(*given)))(*primals)
        close(inner(cotangents, pushed), inner(pulled, tangents), "transpose of vjp")
    else:
        close(pushed, theirs[1], "jvp")
    if name not in NOT_THE_SLOPE:
        given = [primal.clone().requires_grad_() for primal in primals]
        has_slope = [result.requires_grad for result in function(*given)]
        assert_slope(pushed, function, primals, tangents, "jvp", has_slope)


def check_hvp(function: Function, primals: Any, tangents: Any, name: str) -> None:
    torch.manual_seed(0)
    weights = drawn_like(function(*primals), 2)

    def loss(*given: Any) -> Tensor:
        return inner(function(*given), weights)

    places = tuple(range(len(primals)))
    torch.manual_seed(0)
    _, product = adjoint.hvp(loss, primals, tangents)
    slope = func.grad(loss, places)
    theirs = None
    if name not in TWO_ANSWERS:
        theirs = torchs(lambda: func.jvp(slope, primals, tangents)[1])
    if theirs is None:
        theirs = torchs(lambda: func.vjp(slope, *primals)[1](tangents))
    if theirs is not None:
        close(product, theirs, "hvp")
    if name not in NOT_THE_SLOPE:
        assert_slope(product, gradients(loss), primals, tangents, "hvp")


def check_jacfwd(function: Function, primals: Any, name: str) -> None:
    if sum(primal.numel() for primal in primals) > COLUMNS:
        return
    places = tuple(range(len(primals)))
    torch.manual_seed(0)
    columns = adjoint.jacfwd(function, places, randomness="same")(*primals)
    theirs = None
    if name not in TWO_ANSWERS:
        theirs = torchs(lambda: func.jacfwd(function, places, randomness="same")(*primals))
    if theirs is None:
        theirs = torchs(lambda: func.jacrev(function, places)(*primals))
    if theirs is not None:
        close(columns, theirs, "jacfwd")


@pytest.fixture(autouse=True)
def _torch_warns() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ops that are deprecated, in beta, or ask for arguments.
        yield


@pytest.mark.parametrize("op", cases())
def test_forward_mode(op: Any) -> None:
    reason = (EXCEPTIONS | FORWARD_EXCEPTIONS).get(name_of(op))
    if reason is not None:
        pytest.skip(reason)
    check_op(op)


def test_exceptions_are_few_and_known() -> None:
    names = {name_of(op) for op in ops_of(torch.float64)}
    assert len(EXCEPTIONS | FORWARD_EXCEPTIONS) <= 10
    known = FORWARD_EXCEPTIONS.keys() | TWO_ANSWERS.keys() | NOT_THE_SLOPE.keys()
    if not hasattr(torch.nn.functional, "linear_cross_entropy"):
        known = {name for name in known if "linear_cross_entropy" not in name}
    assert names >= known
