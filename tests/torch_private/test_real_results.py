"""What ops really return, against their fakes: every op that torch's own samples reach.

Samples come in several layouts, and in the dtypes that autocast mixes; so do their backward ops.
"""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_leaves, tree_map

from adjoint.torch_private.fake import fake_call, new_fake_mode, storage_key
from adjoint.torch_private.modes import TorchDispatchMode, enable_python_dispatcher
from tests.random_layouts import LAYOUTS
from tests.versions import TORCH

# Samples of each op, and calls of each sample.
SAMPLES = 6

# One op of so many is looked at in each run of the tests; `make test-all` looks at all.
SHARD = 80

# Ops whose results lie in memory otherwise than their fakes say.  Nothing else differs: what reads
# strides looks at them, and a run learns them.
STRIDES = {
    "aten.channel_shuffle.default",
    "aten.max_unpool2d.default",
    "aten.mul.Tensor",
    "aten.native_dropout_backward.default",
    "aten.pow.Scalar",
    "aten.replication_pad2d_backward.default",
}
if TORCH < (2, 13):
    STRIDES |= {"aten._fft_c2c.default", "aten._fft_c2r.default", "aten._fft_r2c.default"}

# Ops of which eager itself must not be called with an empty batch: the process ends, because their
# backward kernel divides integers by the number of elements.  `torch.batch_norm` does not call it.
NEVER_EMPTY = {"native_batch_norm", "_native_batch_norm_legit"}


class Looking(TorchDispatchMode):
    """Calls each op on fakes as well, and notes what differs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: set[tuple[str, str]] = set()

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if op.namespace != "aten" or op._schema.is_mutable or op.is_view:
            return op(*args, **kwargs)
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        if any(each.layout is not torch.strided for each in given):
            return op(*args, **kwargs)
        fakes, fake = self._fake(op, args, kwargs)
        result = op(*args, **kwargs)
        for one, other in zip(tree_leaves(result), tree_leaves(fake), strict=False):
            if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
                wrong = _wrong(one, other)
                shares = [_shares(one, given), _shares(other, fakes)]
                wrong = "memory" if wrong is None and shares[0] != shares[1] else wrong
                if wrong is not None:
                    self.found.add((str(op), wrong))
        return result

    def _fake(self, op: Any, args: Any, kwargs: Any) -> tuple[list[Any], Any]:
        mode = new_fake_mode()

        def fake(leaf: Any) -> Any:
            is_tensor = isinstance(leaf, torch.Tensor)
            return mode.from_tensor(leaf, static_shapes=True) if is_tensor else leaf

        args, kwargs = tree_map(fake, (args, kwargs))
        fakes = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        # What fakes refuse, capture refuses as well, and says so.
        with contextlib.suppress(Exception), mode, enable_python_dispatcher():
            return fakes, fake_call(op, args, kwargs)
        return fakes, None


def _shares(tensor: torch.Tensor, given: list[Any]) -> bool:
    return storage_key(tensor) in {storage_key(each) for each in given}


def _wrong(one: torch.Tensor, other: torch.Tensor) -> str | None:
    if one.layout is not torch.strided or any(not isinstance(s, int) for s in other.shape):
        return None
    if one.dtype != other.dtype:
        return "dtype"
    if one.device.type != other.device.type:
        return "device"
    if one.shape != other.shape:
        return "shape"
    axes = zip(one.shape, one.stride(), other.stride(), strict=True)
    lie_alike = all(a == b or size == 1 for size, a, b in axes)
    return None if lie_alike or not one.numel() else "strides"


def variants(sample: Any) -> Iterator[Any]:
    """A sample in several layouts, and with other dtypes."""
    given = (sample.input, sample.args, sample.kwargs)
    first = sample.input
    if not isinstance(first, torch.Tensor) or first.layout is not torch.strided:
        yield given
        return
    for name in ("plain", "channels last", "swapped", "strided", "expanded along the last"):
        if first.dim() or name == "plain":
            yield LAYOUTS[name](first.detach()), *given[1:]
    for name in ("turned", "overlapping"):
        yield tree_map(lambda leaf, name=name: _laid(leaf, name), given)
    if first.is_floating_point():
        for one, other in itertools.permutations((torch.bfloat16, torch.float32)):
            yield _in(one, first), *_in(other, given[1:])
        yield _in(torch.float16, first), *_in(torch.float32, given[1:])
        yield _in(torch.bfloat16, given)
        yield first[:0] if first.dim() else first, *given[1:]


def _laid(leaf: Any, name: str) -> Any:
    # Other indices may be out of range.
    is_real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
    if not is_real or leaf.layout is not torch.strided or not (leaf.numel() and leaf.dim()):
        return leaf
    return LAYOUTS[name](leaf.detach())


def _in(dtype: torch.dtype, tree: Any) -> Any:
    def converted(leaf: Any) -> Any:
        is_real = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.detach().to(dtype) if is_real else leaf

    return tree_map(converted, tree)


def _tracked(tree: Any) -> Any:
    return tree_map(_tracked_leaf, tree)


def _tracked_leaf(leaf: Any) -> Any:
    if not isinstance(leaf, torch.Tensor):
        return leaf
    return leaf.detach().requires_grad_(leaf.is_floating_point() or leaf.is_complex())


def _run(function: Any, first: Any, args: Any, kwargs: Any) -> None:
    """Call the function, and differentiate it with respect to what requires grad."""
    out = function(first, *args, **kwargs)
    outs = [each for each in tree_leaves(out) if _is_tracked(each)]
    inputs = [each for each in tree_leaves((first, args, kwargs)) if _is_tracked(each)]
    if outs and inputs:
        ones = [torch.ones_like(each) for each in outs]
        torch.autograd.grad(outs, inputs, ones, allow_unused=True)


def differing(info: Any, device: str) -> set[tuple[str, str]]:
    """What differs in calls of an op, and of its derivative."""
    looking = Looking()
    dtype = torch.float32 if info.supports_dtype(torch.float32, device) else torch.int64
    samples = itertools.islice(info.sample_inputs(device, dtype, requires_grad=False), SAMPLES)
    for first, *rest in (variant for sample in samples for variant in variants(sample)):
        if info.name in NEVER_EMPTY and not first.numel():
            continue
        # Some arguments have no derivative: then the first alone is differentiated, or nothing.
        for tracked in ((), (first,), (first, *rest)):
            given = (*map(_tracked, tracked), *(first, *rest)[len(tracked) :])
            # Eager refuses some of the dtypes and layouts.
            with contextlib.suppress(Exception), looking:
                _run(info.op, *given)
    return looking.found


def _is_tracked(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad


def cases(device: str) -> list[Any]:
    infos = [
        info
        for info in op_db
        if info.supports_dtype(torch.float32, device) or info.supports_dtype(torch.int64, device)
    ]
    return [
        pytest.param(
            info,
            id=f"{info.name}.{info.variant_test_name}",
            marks=[] if place % SHARD == 0 else [pytest.mark.slow],
        )
        for place, info in enumerate(infos)
    ]


@pytest.fixture(autouse=True)
def _torch_warns() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.mark.parametrize("info", cases("cpu"))
def test_real_results_are_as_their_fakes(info: Any) -> None:
    found = differing(info, "cpu")
    assert {(op, what) for op, what in found if what != "strides" or op not in STRIDES} == set()


@pytest.mark.gpu
@pytest.mark.parametrize("info", cases("cuda") if torch.cuda.is_available() else [])
def test_real_results_on_a_gpu(info: Any) -> None:
    assert {(op, what) for op, what in differing(info, "cuda") if what != "strides"} == set()
