from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx

import adjoint
from adjoint.compiler import Compiler
from adjoint.graph.metadata import outputs_of
from adjoint.options import Options
from adjoint.torch_private import size_guards
from adjoint.torch_private.fake import fake_mode_of
from tests.differentiation import check, joint_of, targets
from tests.parity import leaf

aten = torch.ops.aten


def test_one_use_needs_no_sum() -> None:
    assert aten.add.Tensor not in targets(joint_of(lambda x: x.sin().cos().exp(), leaf(3)))


def test_uses_are_added_up() -> None:
    joint = joint_of(lambda x: x.sin() + x.cos() + x, leaf(3))
    assert targets(joint).count(aten.add.Tensor) == 2


def sums(joint: fx.GraphModule) -> int:
    return targets(joint).count(aten.sum.dim_IntList) + targets(joint).count(aten.sum.default)


@pytest.mark.parametrize("dynamic", [False, True])
def test_equal_shapes_are_not_summed(dynamic: bool) -> None:
    joint = joint_of(lambda x, y: x * y + x, leaf(3, 4), leaf(3, 4), wrt=(0, 1), dynamic=dynamic)
    assert sums(joint) == 0


@pytest.mark.parametrize(
    ("one", "other"),
    [((3, 1), (3, 4)), ((4,), (3, 4)), ((), (3,)), ((1, 4), (3, 1)), ((2, 1, 3), (2, 5, 3))],
)
def test_broadcast_axes_are_summed(one: tuple[int, ...], other: tuple[int, ...]) -> None:
    for function in (torch.mul, torch.add, torch.div, torch.where, torch.atan2):

        def call(x: Tensor, y: Tensor, function: Any = function) -> Tensor:
            if function is torch.where:
                return torch.where(x > y, x, y)  # type: ignore[no-any-return]
            return function(x, y)  # type: ignore[no-any-return]

        check(call, [leaf(*one), leaf(*other)], 2)


def test_only_the_broadcast_argument_is_summed() -> None:
    joint = joint_of(lambda x, y: x + y, leaf(3, 4), leaf(4), wrt=(0, 1))
    assert sums(joint) == 1


def test_the_gradient_has_the_dtype_of_its_input() -> None:
    half, double = leaf(3, dtype=torch.float32), leaf(3)
    joint = joint_of(torch.mul, half, double, wrt=(0, 1))
    *_, dx, dy = outputs_of(joint.graph)
    assert dx.meta["val"].dtype == torch.float32
    assert dy.meta["val"].dtype == torch.float64


def test_the_gradient_of_a_real_input_is_real() -> None:
    x, z = leaf(3), leaf(3, dtype=torch.complex128)
    check(lambda x, z: x * z, [x, z], 2)
    joint = joint_of(torch.mul, x, z, wrt=(0, 1))
    *_, dx, dz = outputs_of(joint.graph)
    assert not dx.meta["val"].is_complex()
    assert dz.meta["val"].is_complex()


def test_sizes_of_tensors_of_different_ranks_are_not_compared() -> None:
    """Else the derivative of a layer would not hold for as many rows as it has columns."""
    x, w, b = leaf(3, 4), leaf(5, 4), leaf(5)
    captured = adjoint.capture(
        lambda x, w, b: (x @ w.t() + b).tanh() * b, x, w, b, dynamic=True
    ).graph_module
    Compiler(Options()).derivative(captured, (0, 1, 2))
    assert size_guards.assumed(fake_mode_of(captured).shape_env) == []
