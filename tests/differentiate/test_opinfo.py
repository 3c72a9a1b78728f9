"""Every op that torch can differentiate, against eager, on torch's own samples of it."""

from __future__ import annotations

import contextlib
import functools
import itertools
import warnings
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from torch.testing._internal import common_methods_invocations
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree

from tests.differentiation import Through, check

SAMPLES = 3

# One op of so many is checked in each run of the tests; `make test-all` checks them all.
SHARD = 12

# Ops that read data in Python or decide by it what to do: legal with a graph break, not in a graph.
READS_DATA = {
    "corrcoef",
    "cov",
    "linalg.lstsq",
    "linalg.lstsq.grad_oriented",
    "nn.functional.gaussian_nll_loss",
    "tensor_split",
}

# What is not as in eager, and why.
EXCEPTIONS = {
    "as_strided_scatter": "eager's gradient fails gradcheck: x gets the cotangent of the window",
}

# The same, of complex numbers alone.
COMPLEX_EXCEPTIONS = {"to_sparse": "eager raises: no derivative for results of a complex dtype"}


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def ops_of(dtype: torch.dtype, device: str = "cpu") -> list[Any]:
    return [op for op in op_db if op.supports_autograd and op.supports_dtype(dtype, device)]


# Ops whose second derivative takes minutes: a graph of many steps for each of many samples.
LONG = {"grid_sampler_3d", "nn.functional.ctc_loss"}


def cases(dtype: torch.dtype, device: str = "cpu") -> list[Any]:
    """All ops; those that are not in the shard, or take long, are slow."""
    return [
        pytest.param(op, id=name_of(op), marks=[] if is_quick else [pytest.mark.slow])
        for index, op in enumerate(ops_of(dtype, device))
        for is_quick in [index % SHARD == 0 and name_of(op) not in LONG]
    ]


def gpu_cases(dtype: torch.dtype) -> list[Any]:
    return cases(dtype, "cuda") if torch.cuda.is_available() else []


@contextlib.contextmanager
def unseeded() -> Iterator[None]:
    """Let random ops draw from the generator as it is: the samples' wrapper sets a seed inside."""

    def plain(op: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    with mock.patch.object(common_methods_invocations, "wrapper_set_seed", plain):
        yield


def call(op: Any, sample: Any, spec: Any, leaves: list[Any], places: list[int], *given: Any) -> Any:
    leaves = list(leaves)
    for place, value in zip(places, given, strict=True):
        leaves[place] = value
    first, args, kwargs = _pytree.tree_unflatten(leaves, spec)
    result = op.op(first, *args, **kwargs)
    process = sample.output_process_fn_grad
    return process(result) if process is not None else result


def check_op(op: Any, dtype: torch.dtype, order: int, device: str = "cpu") -> None:
    torch.manual_seed(0)
    samples = op.sample_inputs(device, dtype, requires_grad=True)
    name = name_of(op)
    checked = 0
    for sample in itertools.islice(samples, SAMPLES):
        leaves, spec = _pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
        places = [i for i, each in enumerate(leaves) if isinstance(each, torch.Tensor)]
        function = functools.partial(call, op, sample, spec, leaves, places)
        through = Through.DYNAMO if name in READS_DATA else Through.BRIDGE
        with unseeded():
            inputs = [leaves[place] for place in places]
            check(function, inputs, order, through=through)
        checked += 1
    assert checked, "torch has no sample of the op"


def skip_exceptions(op: Any, dtype: torch.dtype) -> None:
    exceptions = {**EXCEPTIONS, **(COMPLEX_EXCEPTIONS if dtype.is_complex else {})}
    reason = exceptions.get(name_of(op))
    if reason is not None:
        pytest.skip(reason)


@pytest.fixture(autouse=True)
def _torch_warns() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ops that are deprecated, in beta, or ask for arguments.
        yield


@pytest.mark.parametrize("op", cases(torch.float64))
def test_two_orders_in_double_precision(op: Any) -> None:
    skip_exceptions(op, torch.float64)
    check_op(op, torch.float64, 2)


@pytest.mark.parametrize("op", cases(torch.float32))
def test_gradients_in_single_precision(op: Any) -> None:
    skip_exceptions(op, torch.float32)
    check_op(op, torch.float32, 1)


@pytest.mark.parametrize("op", cases(torch.complex128))
def test_gradients_of_complex_numbers(op: Any) -> None:
    skip_exceptions(op, torch.complex128)
    check_op(op, torch.complex128, 1)


@pytest.mark.gpu
@pytest.mark.parametrize("op", gpu_cases(torch.float64))
def test_two_orders_on_a_gpu(op: Any) -> None:
    skip_exceptions(op, torch.float64)
    check_op(op, torch.float64, 2, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("op", gpu_cases(torch.float32))
def test_gradients_on_a_gpu(op: Any) -> None:
    skip_exceptions(op, torch.float32)
    check_op(op, torch.float32, 1, "cuda")


def test_exceptions_are_few_and_known() -> None:
    names = {name_of(op) for op in op_db}
    assert len(EXCEPTIONS) + len(COMPLEX_EXCEPTIONS) <= 10
    assert names >= EXCEPTIONS.keys() | COMPLEX_EXCEPTIONS.keys() | READS_DATA
