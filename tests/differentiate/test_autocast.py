"""Modules and ops of torch under autocast on a CPU: dtypes, values and gradients.

Eager rounds to half precision in other places, so neither side is the truth: a compiled result may
be as far from the same in float64, where nothing is cast, as eager's is.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.common_modules import module_db
from torch.utils._pytree import tree_leaves, tree_map

import adjoint
from tests.differentiate.test_opinfo import unseeded
from tests.differentiation import bridged

pytestmark = pytest.mark.filterwarnings("ignore")

HALVES = pytest.mark.parametrize(
    "half", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.slow)], ids=str
)

# How much farther than eager's a result may be, and what is rounding in single precision.
AS_FAR, ROUNDED = 2, 1e-5

# One module or op of so many is looked at in each run of the tests; `make test-all` looks at all.
MODULES_SHARD, OPS_SHARD, SAMPLES = 16, 90, 3

# What eager returns is memory that was never written.
UNWRITTEN = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty"} | {
    "new_empty_strided"
}
# Autocast in eager also casts within the kernel, and then refuses its own two dtypes.
CAST_WITHIN = {"linalg.pinv"}
# Eager's derivative is not zero where the source replaces the input, as finite differences have it.
WRONG_IN_EAGER = {"as_strided_scatter"}

# For GPUs alone, or of results that are not strided.
NOT_HERE = {info.name for info in op_db if info.name.startswith("jiterator")} | {"to_sparse"}


def _is_real(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def _leaves(tree: Any, in_double: bool = False) -> Any:
    def made(leaf: Any) -> Any:
        if not _is_real(leaf):
            return leaf
        wide = torch.complex128 if leaf.is_complex() else torch.float64
        return leaf.detach().to(wide if in_double else leaf.dtype, copy=True).requires_grad_()

    return tree_map(made, tree)


def _results(function: Callable[..., Any], args: Any, kwargs: Any) -> list[Tensor | None]:
    """The values, and gradients for cotangents that depend on the shape alone."""
    torch.manual_seed(0)
    outs = [each for each in tree_leaves(function(*args, **kwargs)) if isinstance(each, Tensor)]
    heads = [each for each in outs if each.requires_grad]
    inputs = [each for each in tree_leaves((args, kwargs)) if _is_real(each)]
    if not heads:
        return list(outs)
    cotangents = [
        torch.linspace(0.5, 1.5, each.numel(), dtype=torch.float64).reshape(each.shape)
        for each in heads
    ]
    given = [one.to(head.dtype) for one, head in zip(cotangents, heads, strict=True)]
    return [*outs, *torch.autograd.grad(heads, inputs, given, allow_unused=True)]


def compare(
    function: Callable[..., Any],
    in_double: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    half: torch.dtype,
) -> None:
    def cast(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", half):
            return function(*args, **kwargs)

    try:
        expected = _results(cast, *_leaves((args, kwargs)))
    except (RuntimeError, NotImplementedError, ValueError):
        return  # Not for this dtype.
    mine = _leaves((args, kwargs))
    try:
        torch.manual_seed(0)
        compiled = bridged(cast, *mine[0], **mine[1])
    except adjoint.CaptureError as error:
        if "must not depend on data" not in str(error):
            raise
        return
    actual = _results(compiled, *mine)
    truth = _results(in_double, *_leaves((args, kwargs), in_double=True))
    for ours, eager, right in zip(actual, expected, truth, strict=True):
        if eager is None or ours is None or right is None:
            assert all(each is None or not each.any() for each in (ours, eager))
            continue
        assert (ours.dtype, ours.shape) == (eager.dtype, eager.shape)
        if not _is_real(eager) or not eager.numel():
            continue
        one, other, exact = (each.detach().to(right.dtype) for each in (ours, eager, right))
        known = other.isfinite()
        assert torch.equal(one.isfinite(), known)
        scale = float(other[known].abs().amax()) if bool(known.any()) else 0.0
        off, theirs = (float((each - exact)[known].abs().sum()) for each in (one, other))
        gap = float((one - other)[known].abs().sum())
        allowed = ROUNDED * (1 + scale) * other.numel()
        assert gap <= allowed or off <= AS_FAR * theirs + allowed, (ours, eager, right)


def _sharded(infos: Sequence[Any], shard: int) -> list[Any]:
    return [
        pytest.param(info, id=info.name, marks=[] if n % shard == 3 else [pytest.mark.slow])
        for n, info in enumerate(infos)
    ]


def _modules(info: Any) -> Iterator[tuple[torch.nn.Module, Any]]:
    for training in (True, False):
        given = {"device": "cpu", "dtype": torch.float32, "requires_grad": False}
        samples = info.module_inputs_func(info, training=training, **given)
        for sample in samples[: 2 * SAMPLES]:
            if sample.forward_input is None:
                continue
            made = sample.constructor_input
            torch.manual_seed(1)
            yield info.module_cls(*made.args, **made.kwargs).train(training), sample.forward_input


@HALVES
@pytest.mark.parametrize("info", _sharded(module_db, MODULES_SHARD))
def test_modules(info: Any, half: torch.dtype) -> None:
    if info.module_cls.__name__.startswith("Lazy"):
        pytest.skip("it has no parameters yet")
    for module, given in _modules(info):
        names = [name for name, _ in module.named_parameters()]

        def called(parameters: Any, *args: Any, of: Any = module, **kwargs: Any) -> Any:
            # A batch norm writes to its buffers, so each call has its own.
            state = {name: buffer.clone() for name, buffer in of.named_buffers()}
            state |= dict(zip(names, parameters, strict=True))  # noqa: B023 - called in this turn
            return torch.func.functional_call(of, state, args, kwargs)

        wide = copy.deepcopy(module).double()

        def in_double(*args: Any, of: Any = wide, **kwargs: Any) -> Any:
            return called(*args, of=of, **kwargs)

        parameters = [each.detach() for each in module.parameters()]
        compare(called, in_double, [parameters, *given.args], given.kwargs, half)


OPS = [
    info
    for info in op_db
    if info.supports_dtype(torch.float32, "cpu")
    and info.name not in UNWRITTEN | CAST_WITHIN | WRONG_IN_EAGER | NOT_HERE
]


@HALVES
@pytest.mark.parametrize("info", _sharded(OPS, OPS_SHARD))
def test_ops(info: Any, half: torch.dtype) -> None:
    samples = info.sample_inputs("cpu", torch.float32, requires_grad=False)
    for sample in itertools.islice(samples, SAMPLES):
        tensors = [x for x in tree_leaves((sample.input, sample.args)) if isinstance(x, Tensor)]
        if all(each.layout is torch.strided for each in tensors) and "options" not in sample.kwargs:
            args = (sample.input, *sample.args)
            with unseeded():
                compare(info.op, info.op, args, sample.kwargs, half)


@HALVES
def test_a_kernel_that_multiplies_is_not_rounded_within(half: torch.dtype) -> None:
    """Eager casts the products inside `_trilinear` to half precision, and returns float32."""
    torch.manual_seed(0)
    module = torch.nn.Bilinear(5, 6, 4)
    x, y = torch.randn(3, 5), torch.randn(3, 6)
    with torch.autocast("cpu", half):
        ours, eager = adjoint.run(adjoint.capture(module, x, y), x, y), module(x, y)
    right = copy.deepcopy(module).double()(x.double(), y.double())
    assert ours.dtype == eager.dtype == torch.float32
    assert float((ours - right).abs().max()) < 1e-5 < float((eager - right).abs().max())
