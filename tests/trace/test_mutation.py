"""The functional counterparts of mutating ops."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.errors import CaptureError, SourceLine
from adjoint.trace.mutation import (
    Functional,
    bind,
    changes_metadata_only,
    functional_variant,
    returns_fit,
    unbind,
)

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("mutating", "pure"),
    [
        (aten.add_.Tensor, aten.add.Tensor),
        (aten.add.out, aten.add.Tensor),
        (aten.max.dim_max, aten.max.dim),
        (aten.__ilshift__.Scalar, aten.__lshift__.Scalar),
        (aten._foreach_add_.Scalar, aten._foreach_add.Scalar),
        (aten.index_put_.default, aten.index_put.default),
        (aten.normal_.default, aten.normal_functional.default),
        (aten.squeeze_.dim, aten.squeeze.dim),
        (aten.native_batch_norm.default, aten._native_batch_norm_legit_functional.default),
    ],
)
def test_the_pure_counterpart(mutating: Any, pure: Any) -> None:
    found = functional_variant(mutating)
    assert found is not None
    assert found.op is pure


def test_the_pure_counterpart_of_a_kernel_of_cudnn_takes_its_arguments() -> None:
    op = aten.cudnn_batch_norm.default
    pure = functional_variant(op)
    assert pure is not None
    assert returns_fit(op, pure.op, 2)
    given = {argument.name: argument.name for argument in op._schema.arguments}
    taken = pure.arguments(op, given)
    assert list(taken) == [argument.name for argument in pure.op._schema.arguments]
    assert (taken["momentum"], taken["eps"]) == ("exponential_average_factor", "epsilon")


def test_a_generator_that_the_pure_counterpart_does_not_take_is_refused() -> None:
    line = SourceLine("model.py", 3, "forward", "x.random_(generator=g)")
    pure = Functional(aten.clone.default, frozenset({"generator"}))
    with pytest.raises(CaptureError, match="draws from the default generator") as raised:
        pure.arguments(aten.random_.default, {"self": 0, "generator": torch.Generator()}, line)
    assert raised.value.source == line


def test_an_op_of_another_namespace_has_no_pure_counterpart() -> None:
    @torch.library.custom_op("adjoint_tests::bump", mutates_args=("x",))
    def bump(x: Tensor) -> None:
        x.add_(1)

    assert functional_variant(torch.ops.adjoint_tests.bump.default) is None


def test_metadata_only() -> None:
    assert changes_metadata_only(aten.t_.default)
    assert not changes_metadata_only(aten.add_.Tensor)


def test_arguments_are_bound_by_name_and_unbound_again() -> None:
    named = bind(aten.add_.Tensor, (1, 2), {"alpha": 3})
    assert named == {"self": 1, "other": 2, "alpha": 3}
    assert unbind(aten.add_.Tensor, named) == ((1, 2), {"alpha": 3})


def test_a_generator_is_not_left_out_in_silence() -> None:
    generator = torch.Generator().manual_seed(0)

    def program(x: Tensor) -> Any:
        return x.clone().random_(0, 10, generator=generator) + x

    with pytest.raises(adjoint.CaptureError, match="not from the one given"):
        adjoint.capture(program, torch.zeros(3))
