from __future__ import annotations

import operator
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx import Graph

from adjoint.graph.descriptors import (
    Argument,
    Buffer,
    DifferentiableInput,
    DifferentiableOutput,
    EffectToken,
    Gradient,
    Input,
    InputMutation,
    Output,
    Parameter,
    Phase,
    Result,
    Saved,
    SavedInput,
    SubclassAttribute,
    SubclassAttributeOut,
    SubclassSize,
    SymbolicSize,
    Tangent,
    ViewArgument,
    order_of,
)
from adjoint.graph.metadata import set_descriptor, set_output_descriptors
from adjoint.graph.pairing import (
    buffers,
    gradient_of,
    input_nodes,
    input_positions,
    inputs_with_gradients,
    output_nodes,
    output_positions,
    outputs_with_tangents,
    parameter_gradients,
    parameters,
    tangent_of,
)

X = Argument(0, "args[0]")
W = Parameter("w")
M = Buffer("w")  # deliberately the name of the parameter
R = Result(0, "result")


def test_positions() -> None:
    assert input_positions([X, W, M]) == {X: 0, W: 1, M: 2}
    assert output_positions([Gradient(X), R]) == {Gradient(X): 0, R: 1}


def test_two_values_cannot_share_a_descriptor() -> None:
    with pytest.raises(ValueError, match=r"two values have the descriptor 'args\[0\]'"):
        input_positions([X, W, X])
    with pytest.raises(ValueError, match="'result'"):
        output_positions([R, R])


def test_nodes_are_found_by_descriptor() -> None:
    graph = Graph()
    # Names that contradict the descriptors: only descriptors count.
    tangent, weight = graph.placeholder("weight"), graph.placeholder("tangent")
    set_descriptor(tangent, Tangent(R))
    set_descriptor(weight, W)
    gradient = graph.call_function(operator.mul, (tangent, weight))
    graph.output((None, gradient))
    set_output_descriptors(graph, (Gradient(X), Gradient(W)))
    assert input_nodes(graph) == {Tangent(R): tangent, W: weight}
    assert output_nodes(graph) == {Gradient(X): None, Gradient(W): gradient}
    assert parameter_gradients(output_nodes(graph)) == {"w": gradient}


def test_inputs_pair_with_their_gradients() -> None:
    inputs: list[Input] = [SymbolicSize("s0"), W, M, X, EffectToken(0, Phase.FORWARD), Tangent(R)]
    outputs: list[Output] = [Gradient(X), R, Gradient(W)]
    pairs = inputs_with_gradients(input_positions(inputs), output_positions(outputs))
    assert pairs == {W: (1, 2), M: (2, None), X: (3, 0), Tangent(R): (5, None)}


def test_outputs_pair_with_their_tangents() -> None:
    inputs: list[Input] = [Tangent(InputMutation(M)), W, Tangent(R)]
    outputs: list[Output] = [R, ViewArgument(0), InputMutation(M), Saved(0, checked=True)]
    pairs = outputs_with_tangents(input_positions(inputs), output_positions(outputs))
    assert pairs == {R: (0, 2), InputMutation(M): (2, 0), Saved(0, checked=True): (3, None)}


def test_parameters_and_buffers_of_one_name_are_told_apart() -> None:
    inputs = input_positions([X, W, M, Parameter("v")])
    assert parameters(inputs) == {"w": 1, "v": 3}
    assert buffers(inputs) == {"w": 2}


def test_a_parameter_has_a_gradient_at_every_order() -> None:
    outputs = output_positions(
        [Gradient(W), Gradient(M), Gradient(W, order=2), Gradient(Tangent(R))]
    )
    assert parameter_gradients(outputs) == {"w": 0}
    assert parameter_gradients(outputs, order=2) == {"w": 2}
    assert parameter_gradients(outputs, order=3) == {}


def test_pairs_of_one_order() -> None:
    inputs = input_positions([W, Tangent(R)])
    outputs = output_positions([Gradient(W), Gradient(W, order=2), Gradient(Tangent(R))])
    assert inputs_with_gradients(inputs, outputs, order=1) == {W: (0, 0)}
    assert inputs_with_gradients(inputs, outputs, order=2) == {W: (0, 1), Tangent(R): (1, 2)}


def test_outputs_pair_at_one_order() -> None:
    inputs = input_positions([Tangent(R), Tangent(R, order=2), Tangent(Gradient(W))])
    outputs = output_positions([R, Gradient(W)])
    assert outputs_with_tangents(inputs, outputs, order=1) == {R: (0, 0)}
    assert outputs_with_tangents(inputs, outputs, order=2) == {R: (0, 1), Gradient(W): (1, 2)}


def test_the_gradient_of_a_piece_is_a_piece_of_the_gradient() -> None:
    inner = SubclassAttribute(SubclassAttribute(X, "a"), "b")
    gradient = SubclassAttributeOut(SubclassAttributeOut(Gradient(X), "a"), "b")
    assert gradient_of(inner) == gradient
    tangent = SubclassAttribute(SubclassAttribute(Tangent(Gradient(X)), "a"), "b")
    assert tangent_of(gradient) == tangent
    inputs = input_positions([inner, SubclassSize(X, 0)])
    assert inputs_with_gradients(inputs, output_positions([gradient])) == {inner: (0, 0)}
    outputs = output_positions([gradient])
    assert outputs_with_tangents(input_positions([tangent]), outputs) == {gradient: (0, 0)}
    assert gradient_of(SubclassAttribute(Tangent(R), "a"), order=1) is None
    assert tangent_of(SubclassAttributeOut(Gradient(X), "a"), order=1) is None


plain_inputs = st.one_of(
    st.builds(Argument, st.integers(0, 3), st.just("a")),
    st.builds(Parameter, st.sampled_from("vw")),
    st.builds(Buffer, st.sampled_from("vw")),
    st.builds(SavedInput, st.builds(Saved, st.integers(0, 3), st.booleans(), st.integers(1, 3))),
)
plain_outputs = st.one_of(
    st.builds(Result, st.integers(0, 3), st.just("r")),
    st.builds(InputMutation, st.builds(Buffer, st.sampled_from("vw"))),
    st.builds(Saved, st.integers(0, 3), st.booleans(), st.integers(1, 3)),
)
inputs_of_any_depth: st.SearchStrategy[DifferentiableInput] = st.deferred(
    lambda: plain_inputs | st.builds(Tangent, outputs_of_any_depth)
)
outputs_of_any_depth: st.SearchStrategy[DifferentiableOutput] = st.deferred(
    lambda: plain_outputs | st.builds(Gradient, inputs_of_any_depth)
)


@given(st.sets(inputs_of_any_depth, min_size=1), st.randoms(use_true_random=False))
def test_inputs_of_any_depth_pair_with_their_gradients(
    inputs: set[DifferentiableInput], shuffle: random.Random
) -> None:
    ordered = sorted(inputs, key=repr)
    with_gradient = [descriptor for descriptor in ordered if shuffle.random() < 0.5]
    outputs: list[Output] = [Gradient(descriptor) for descriptor in with_gradient]
    shuffle.shuffle(outputs)
    pairs = inputs_with_gradients({d: d for d in ordered}, {d: d for d in outputs})
    assert pairs.keys() == inputs
    for descriptor, (value, gradient) in pairs.items():
        assert value == descriptor
        if descriptor in with_gradient:
            assert isinstance(gradient, Gradient)
            assert gradient.of == descriptor
            assert gradient.order == order_of(descriptor) + 1
        else:
            assert gradient is None


@given(st.sets(outputs_of_any_depth, min_size=1), st.randoms(use_true_random=False))
def test_outputs_of_any_depth_pair_with_their_tangents(
    outputs: set[DifferentiableOutput], shuffle: random.Random
) -> None:
    ordered = sorted(outputs, key=repr)
    with_tangent = [descriptor for descriptor in ordered if shuffle.random() < 0.5]
    inputs: list[Input] = [Tangent(descriptor) for descriptor in with_tangent]
    shuffle.shuffle(inputs)
    pairs = outputs_with_tangents({d: d for d in inputs}, {d: d for d in ordered})
    assert pairs.keys() == outputs
    for descriptor, (value, tangent) in pairs.items():
        assert value == descriptor
        if descriptor in with_tangent:
            assert isinstance(tangent, Tangent)
            assert tangent.of == descriptor
        else:
            assert tangent is None


def test_values_may_be_anything() -> None:
    tensors: dict[Input, torch.Tensor] = {W: torch.ones(2)}
    assert parameters(tensors)["w"] is tensors[W]
