from __future__ import annotations

from typing import Any

import pytest
import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from adjoint.torch_private import size_evaluation, size_guards, symbols
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import DATA_DEPENDENT, FakeTensorMode, make_fake, new_fake_mode
from tests.versions import TORCH


def test_symbols_are_seen_in_inputs_as_they_were_before_anything_was_assumed() -> None:
    mode = new_fake_mode()
    fake = make_fake(mode, torch.randn(4, 3), True, "x")
    (first, second) = map(symbols.unsimplified, fake.shape)
    size: Any = fake.shape[0]
    with size_guards.assumptions(mode.shape_env):
        assert size == 4
    assert symbols.expression(size) == 4
    assert symbols.symbol_positions([2, fake]) == [(first, 1, 0), (second, 1, 1)]
    assert size_evaluation.first_violated(size_guards.assumed(mode.shape_env), {first: 4}) is None
    assert (
        size_evaluation.first_violated(size_guards.assumed(mode.shape_env), {first: 5}) is not None
    )


def test_symbols_anew_are_those_of_another_shape_env() -> None:
    mode, other = new_fake_mode(), new_fake_mode()
    symbol = symbols.unsimplified(make_fake(mode, torch.randn(4), True, "x").shape[0])
    assert isinstance(symbol, sympy.Symbol)
    assert other.shape_env is not None
    made = symbols.fresh_symbols(other.shape_env, {symbol: 7})[symbol]
    assert isinstance(made, torch.SymInt)
    assert made.node.hint == 7
    assert made.node.shape_env is other.shape_env
    assert size_guards.assumed(None) == []


def test_what_is_taken_for_granted_is_written_down_once() -> None:
    mode = new_fake_mode()
    x = make_fake(mode, torch.randn(4, 3), True, "x")
    with (
        size_guards.assumptions(mode.shape_env) as outer,
        size_guards.assumptions(mode.shape_env) as inner,
    ):
        assert x.shape[0] != 1
    assert inner is outer is size_guards.assumed(mode.shape_env)
    assert len(outer) == 1
    with size_guards.assumptions(mode.shape_env):
        assert x.shape[0] < 7
    assert len(outer) == 2
    with size_guards.assumptions(None) as nothing:
        pass
    assert nothing == []


def test_sizes_that_depend_on_data_are_let_be_for_a_while() -> None:
    shape_env = ShapeEnv(allow_dynamic_output_shape_ops=False)
    mode = FakeTensorMode(shape_env=shape_env)
    with mode:
        x = torch.empty(3)
        with pytest.raises(DATA_DEPENDENT):
            x.nonzero()
        with size_guards.allow_data_dependent_sizes(shape_env):
            assert isinstance(x.nonzero().shape[0], torch.SymInt)
        with pytest.raises(DATA_DEPENDENT):
            torch.empty(4).nonzero()
    with size_guards.allow_data_dependent_sizes(None):
        pass


@pytest.mark.skipif(
    TORCH <= (2, 11), reason="the size of such a slice depends on data in 2.11, whatever is guarded"
)
@pytest.mark.parametrize("length", [9, 10])
def test_where_a_slice_ends_is_decided(length: int) -> None:
    aten = torch.ops.aten
    fake_mode = new_fake_mode()
    fake = make_fake(fake_mode, torch.randn(length), True, "x")
    half: Any = fake.shape[0] // 2
    places = [
        (aten.slice.Tensor, (fake[:half], 0, 1, fake.shape[0] - half)),
        (aten.slice.Tensor, (fake, 0, 3 - half)),
        (aten.select.int, (fake, 0, half - 3)),
    ]
    for op, args in places:
        with general_shapes(), fake_mode:
            size_guards.guard_open_decisions(op, args, {})
            made = op(*args)
        assert not any(map(symbols.is_unbacked_int, (*made.shape, made.storage_offset())))


@pytest.mark.parametrize("length", [4, 0])
def test_nothing_is_normalized_only_where_sizes_are_numbers(length: int) -> None:
    op: Any = torch.ops.aten.native_batch_norm.default
    mode = new_fake_mode()
    assert mode.shape_env is not None
    with general_shapes():
        x, w = make_fake(mode, torch.randn(length, 3), True, "x"), torch.ones(3)
        rows, columns = map(symbols.unsimplified, x.shape)
        assert isinstance(rows, sympy.Symbol)
        assert isinstance(columns, sympy.Symbol)
        if length:
            size_guards.guard_open_decisions(op, (x, w, w, None, None, True, 0.1, 1e-5), {})
            conditions = size_guards.never_zero(mode.shape_env, [rows, columns])
            assert size_evaluation.first_violated(conditions, {rows: 4, columns: 3}) is None
            assert size_evaluation.first_violated(conditions, {rows: 0, columns: 3}) is not None
        else:
            with pytest.raises(size_guards.SizeSpecialized, match="nothing is normalized"):
                size_guards.guard_open_decisions(op, (x, w, w, None, None, True, 0.1, 1e-5), {})
            assert not size_guards.never_zero(mode.shape_env, [rows])
