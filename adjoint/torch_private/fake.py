"""Fake tensors: tensors with every fact but their data."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    UnsupportedOperatorException,
    unset_fake_temporarily,
)
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)

__all__ = [
    "DATA_DEPENDENT",
    "FakeTensor",
    "FakeTensorMode",
    "UnsupportedOperatorException",
    "detect_fake_mode",
    "make_fake",
    "new_fake_mode",
    "unset_fake_temporarily",
]

# What torch raises when a program needs a value that only a real run would have.
DATA_DEPENDENT = (
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)


def new_fake_mode() -> FakeTensorMode:
    """A fake mode of our own: sizes 0 and 1 and equal sizes are not special, scalars may be read."""
    shape_env = ShapeEnv(
        allow_scalar_outputs=True,
        allow_dynamic_output_shape_ops=True,
        specialize_zero_one=False,
        duck_shape=False,
    )
    return FakeTensorMode(shape_env=shape_env, allow_non_fake_inputs=False)


def make_fake(mode: FakeTensorMode, tensor: torch.Tensor, dynamic: bool, name: str) -> torch.Tensor:
    """The fake of `tensor`: aliasing, views, leaves and subclasses are as among the real ones."""
    if not dynamic:
        return mode.from_tensor(tensor, static_shapes=True)
    from torch._dynamo.source import ConstantSource

    context = StatelessSymbolicContext(
        dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim(),
        constraint_sizes=[None] * tensor.dim(),
    )
    with contextlib.suppress(NotImplementedError):
        return mode.from_tensor(
            tensor, static_shapes=False, symbolic_context=context, source=ConstantSource(name)
        )
    return mode.from_tensor(tensor, static_shapes=True)


def storage_key(tensor: torch.Tensor) -> Any:
    """What identifies the memory of `tensor`; None where it has none (sparse tensors)."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None
