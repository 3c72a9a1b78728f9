"""The `type: ignore`s are tests too: mypy refuses one that hides no error, so each line below that
carries one is an illegal nesting to mypy as well as at run time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from adjoint.graph.descriptors import (
    Argument,
    Buffer,
    ClosedOver,
    DifferentiableInput,
    DifferentiableOutput,
    EarlierResult,
    EffectToken,
    EffectTokenOut,
    Gradient,
    Input,
    InputMutation,
    IntermediateBase,
    MetadataMutation,
    Output,
    Parameter,
    Result,
    Saved,
    SavedInput,
    Seeds,
    SymbolicSize,
    SyntheticBase,
    Tangent,
    ViewArgument,
    ViewBase,
    ViewValue,
    order_of,
)

X = Argument(0, "args[0]")
Y = Argument(1, "args[1]['y']")
W = Parameter("layer.weight")
R = Result(0, "result")
S = Saved(3, checked=True)

# Every descriptor there is, beside what it reads as.
VOCABULARY: list[tuple[Input | Output, str]] = [
    (X, "args[0]"),
    (W, "parameter 'layer.weight'"),
    (Buffer("running_mean"), "buffer 'running_mean'"),
    (ClosedOver(0, "scale"), "captured 'scale'"),
    (SymbolicSize("s0"), "size s0"),
    (ViewBase((X, Y)), "view base of args[0] and args[1]['y']"),
    (
        SyntheticBase((X, Y, W)),
        "storage shared by args[0], args[1]['y'] and parameter 'layer.weight'",
    ),
    (Tangent(R), "tangent of result"),
    (SavedInput(S), "saved value #3"),
    (EarlierResult(R), f"{R.describe()}, used further on"),
    (EffectToken(2), "effect token #2"),
    (Seeds(), "seeds of the random streams"),
    (Result(1, "result['loss']"), "result['loss']"),
    (InputMutation(ViewBase((X,))), "new value of view base of args[0]"),
    (MetadataMutation(X), "new metadata of args[0]"),
    (IntermediateBase((R, Result(1, "b"))), "base of result and b"),
    (ViewArgument(4), "view argument #4"),
    (ViewValue(2), "view value #2"),
    (Gradient(W), "gradient of parameter 'layer.weight'"),
    (Saved(1, checked=False, order=2), "saved value #1 (unchecked, order 2)"),
    (EffectTokenOut(2), "updated effect token #2"),
]


@pytest.mark.parametrize(("descriptor", "text"), VOCABULARY)
def test_a_descriptor_reads_aloud(descriptor: Input | Output, text: str) -> None:
    assert descriptor.describe() == text


def test_the_vocabulary_is_complete() -> None:
    listed = {type(descriptor) for descriptor, _ in VOCABULARY}
    assert listed == {*get_args(Input), *get_args(Output)}


def test_derivatives_of_derivatives_read_aloud() -> None:
    assert Tangent(Gradient(X)).describe() == "tangent of gradient of args[0]"
    assert Gradient(Tangent(R)).describe() == "gradient of tangent of result"
    assert Gradient(W, order=2).describe() == "gradient of parameter 'layer.weight' (order 2)"


def test_descriptors_compare_by_content_and_are_keys() -> None:
    assert {Gradient(Parameter("w")): 1}[Gradient(Parameter("w"))] == 1
    assert Gradient(Parameter("w")) != Gradient(Buffer("w"))
    assert len({descriptor for descriptor, _ in VOCABULARY}) == len(VOCABULARY)


@pytest.mark.parametrize("descriptor", [descriptor for descriptor, _ in VOCABULARY])
def test_descriptors_are_frozen_and_slotted(descriptor: Input | Output) -> None:
    slots: tuple[str, ...] = type(descriptor).__slots__
    assert not hasattr(descriptor, "__dict__")
    if not slots:
        return  # There is nothing to change.
    field = slots[0]
    with pytest.raises(FrozenInstanceError):
        setattr(descriptor, field, None)


def test_inputs_and_outputs_are_disjoint() -> None:
    assert not set(get_args(Input)) & set(get_args(Output))


# What may not nest in what, and what the error expects instead.
ILLEGAL: list[tuple[Callable[[], Any], str]] = [
    (lambda: Tangent(X), "Tangent.of must be a differentiable output"),  # type: ignore[arg-type]
    (lambda: Tangent(ViewArgument(0)), "a differentiable output"),  # type: ignore[arg-type]
    (lambda: Tangent(EffectTokenOut(0)), "a differentiable output"),  # type: ignore[arg-type]
    (lambda: Tangent("result"), "got 'result'"),  # type: ignore[arg-type]
    (lambda: Gradient(R), "Gradient.of must be a differentiable input"),  # type: ignore[arg-type]
    (lambda: Gradient(SymbolicSize("s0")), "a differentiable input"),  # type: ignore[arg-type]
    (lambda: Gradient(EffectToken(0)), "EffectToken"),  # type: ignore[arg-type]
    (lambda: Gradient(S), "a differentiable input"),  # type: ignore[arg-type]
    (lambda: SavedInput(R), "SavedInput.of must be a saved value"),  # type: ignore[arg-type]
    (lambda: ViewBase((Tangent(R),)), "inputs that the user sees"),  # type: ignore[arg-type]
    (lambda: ViewBase((X, ViewBase((Y,)))), "inputs that the user sees"),  # type: ignore[arg-type]
    (lambda: ViewBase([X]), "must be a tuple"),  # type: ignore[arg-type]
    (lambda: SyntheticBase((R,)), "inputs that the user sees"),  # type: ignore[arg-type]
    (lambda: InputMutation(Tangent(R)), "before differentiation"),  # type: ignore[arg-type]
    (lambda: InputMutation(SymbolicSize("s0")), "before diff"),  # type: ignore[arg-type]
    (lambda: MetadataMutation(SavedInput(S)), "before differentiation"),  # type: ignore[arg-type]
    (lambda: IntermediateBase((Gradient(X),)), "must be results"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("build", "expected"), ILLEGAL)
def test_an_illegal_nesting_says_what_was_expected(build: Callable[[], Any], expected: str) -> None:
    with pytest.raises(TypeError, match=r"\.of must be") as error:
        build()
    assert expected in str(error.value)


@pytest.mark.parametrize("kind", [ViewBase, SyntheticBase, IntermediateBase])
def test_a_base_is_the_base_of_something(kind: Callable[[tuple[()]], Any]) -> None:
    with pytest.raises(ValueError, match="at least one"):
        kind(())


def test_the_order_is_the_least_possible_unless_written() -> None:
    assert Gradient(X) == Gradient(X, order=1)
    assert Gradient(X) != Gradient(X, order=2)
    assert Tangent(Gradient(X)).order == 2
    assert Tangent(Gradient(X, order=4)).order == 5


def test_a_derivative_comes_after_what_it_is_taken_of() -> None:
    with pytest.raises(ValueError, match="the least legal order is 2"):
        Gradient(Tangent(R), order=1)
    with pytest.raises(ValueError, match=r"Saved\.order is 0; the first backward has order 1"):
        Saved(0, checked=True, order=0)


def test_a_saved_value_leaves_one_program_and_enters_the_next() -> None:
    # The first program returns it, so its cotangent belongs to the first backward.
    assert order_of(S) == 0
    assert Tangent(S).order == 1
    # The first backward takes it, so its gradient belongs to the second.
    assert order_of(SavedInput(S)) == 1
    assert Gradient(SavedInput(S)).order == 2


def test_an_earlier_result_has_the_order_of_the_program_that_returns_it() -> None:
    assert order_of(EarlierResult(R)) == 0
    assert order_of(EarlierResult(Gradient(X))) == 1
    assert Gradient(EarlierResult(Gradient(X))).order == 2


def chain(depth: int, inward: bool) -> DifferentiableInput | DifferentiableOutput:
    """`depth` tangents and gradients in turn, around an input or around an output."""
    descriptor: DifferentiableInput | DifferentiableOutput = X if inward else R
    for _ in range(depth):
        if isinstance(descriptor, DifferentiableInput):
            descriptor = Gradient(descriptor)
        else:
            descriptor = Tangent(descriptor)
    return descriptor


@given(st.integers(0, 12), st.integers(0, 12), st.booleans())
def test_tangents_and_gradients_nest_to_any_depth(m: int, n: int, inward: bool) -> None:
    outer, other = chain(m, inward), chain(n, inward)
    assert order_of(outer) == m
    assert outer.describe().count(" of ") == m
    assert (outer == other) == (m == n)
    assert outer == chain(m, inward)
    assert hash(outer) == hash(chain(m, inward))
