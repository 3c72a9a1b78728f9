from __future__ import annotations

import pytest
import torch

from adjoint.torch_private.operators import (
    HigherOrderOperator,
    OpOverload,
    OpOverloadPacket,
    chunked_cross_entropy,
    depends_on_data,
    implicitly_written_arguments,
    is_composite,
    named_arguments,
    written_arguments,
)

aten = torch.ops.aten


@pytest.mark.parametrize(
    ("operator", "written"),
    [
        (aten.add.Tensor, ()),
        (aten.view.default, ()),  # it returns an alias, but writes to nothing
        (aten.add_.Tensor, ("self",)),
        (aten.add.out, ("out",)),
        (aten.sort.values, ("values", "indices")),
        (aten._foreach_add_.Scalar, ("self",)),
    ],
)
def test_written_arguments(operator: OpOverload, written: tuple[str, ...]) -> None:
    assert written_arguments(operator) == written


@pytest.mark.parametrize("training", [True, False])
def test_running_statistics_are_written_in_training(training: bool) -> None:
    mean, var = torch.zeros(2), torch.ones(2)
    named = {
        "input": torch.randn(5, 2),
        "weight": None,
        "bias": None,
        "running_mean": mean,
        "running_var": var,
        "training": training,
    }
    aten.native_batch_norm.default(*named.values(), 0.1, 1e-5)
    written = implicitly_written_arguments(aten.native_batch_norm.default, named)
    assert written == (("running_mean", "running_var") if training else ())
    assert bool(mean.any()) is training


def test_nothing_is_written_unsaid_by_other_ops_or_where_there_are_no_statistics() -> None:
    assert implicitly_written_arguments(aten.native_layer_norm.default, {"training": True}) == ()
    none = {"training": True, "running_mean": None, "running_var": None}
    assert implicitly_written_arguments(aten.native_batch_norm.default, none) == ()


def test_what_torch_defines_by_other_operators() -> None:
    assert all(map(is_composite, (aten.to.dtype, aten.reshape.default, aten.linear.default)))
    assert not any(map(is_composite, (aten._to_copy.default, aten.view.default, aten.mm.default)))
    # With kernels of its own, and a definition for other devices.
    assert not is_composite(aten.silu_backward.default)


def test_kinds_of_operators() -> None:
    assert isinstance(aten.add.Tensor, OpOverload)
    assert not isinstance(aten.add, OpOverload)
    assert isinstance(aten.add, OpOverloadPacket)
    assert isinstance(torch.ops.higher_order.cond, HigherOrderOperator)


def test_the_loss_of_each_row_is_named_as_torch_names_it() -> None:
    op = chunked_cross_entropy()
    known = hasattr(torch.nn.functional, "linear_cross_entropy")
    assert op is None or (known and len(op._schema.arguments) == 9)


def test_arguments_by_name() -> None:
    op = aten.sum.dim_IntList
    assert named_arguments(op, (1, [0]), {"dtype": None}) == {"self": 1, "dim": [0], "dtype": None}


def test_operators_whose_results_depend_on_data() -> None:
    assert depends_on_data(aten.nonzero.default)
    assert depends_on_data(aten._local_scalar_dense.default)
    assert not depends_on_data(aten.add.Tensor)
