"""Which input belongs to which output: a question put to descriptors, never to names or positions.

Inputs and outputs are mappings from descriptor to whatever the caller works with: nodes
(`input_nodes`, `output_nodes`), positions (`input_positions`, `output_positions`), tensors. The
queries answer in those values.

    inputs, outputs = input_nodes(graph), output_nodes(graph)
    for name, gradient in parameter_gradients(outputs).items(): ...
    for descriptor, (value, gradient) in inputs_with_gradients(inputs, outputs).items(): ...

A value has one gradient for every differentiation it takes part in (see "Orders" in
`adjoint.graph.descriptors`). Where `order` is None, the first one possible is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from torch.fx import Graph, Node

from adjoint.graph.descriptors import (
    Buffer,
    DifferentiableInput,
    DifferentiableOutput,
    Gradient,
    Input,
    Output,
    Parameter,
    SubclassAttribute,
    SubclassAttributeOut,
    Tangent,
    TensorInput,
    TensorOutput,
    order_of,
)
from adjoint.graph.metadata import input_descriptors, output_descriptors, outputs_of

T = TypeVar("T")
U = TypeVar("U")
D = TypeVar("D", Input, Output)


def input_positions(descriptors: Iterable[Input]) -> dict[Input, int]:
    """Where each input stands."""
    return _by_descriptor((descriptor, index) for index, descriptor in enumerate(descriptors))


def output_positions(descriptors: Iterable[Output]) -> dict[Output, int]:
    """Where each output stands."""
    return _by_descriptor((descriptor, index) for index, descriptor in enumerate(descriptors))


def input_nodes(graph: Graph) -> dict[Input, Node]:
    """The placeholders of a graph."""
    return _by_descriptor(
        zip(input_descriptors(graph), graph.find_nodes(op="placeholder"), strict=True)
    )


def output_nodes(graph: Graph) -> dict[Output, Any]:
    """What a graph returns: nodes, and constants such as None for an input without a gradient."""
    return _by_descriptor(zip(output_descriptors(graph), outputs_of(graph), strict=True))


def gradient_of(descriptor: TensorInput, order: int | None = None) -> TensorOutput | None:
    """The descriptor that the gradient of this input has; None if there is none at this order.

    The gradient of a tensor inside a subclass is that tensor inside the subclass's gradient.
    """
    if isinstance(descriptor, SubclassAttribute):
        whole = gradient_of(descriptor.of, order)
        return None if whole is None else SubclassAttributeOut(whole, descriptor.name)
    if order is not None and order <= order_of(descriptor):
        return None
    return Gradient(descriptor) if order is None else Gradient(descriptor, order)


def tangent_of(descriptor: TensorOutput, order: int | None = None) -> TensorInput | None:
    """The descriptor that the tangent of this output has; None if there is none at this order."""
    if isinstance(descriptor, SubclassAttributeOut):
        whole = tangent_of(descriptor.of, order)
        return None if whole is None else SubclassAttribute(whole, descriptor.name)
    if order is not None and order <= order_of(descriptor):
        return None
    return Tangent(descriptor) if order is None else Tangent(descriptor, order)


def inputs_with_gradients(
    inputs: Mapping[Input, T], outputs: Mapping[Output, U], order: int | None = None
) -> dict[TensorInput, tuple[T, U | None]]:
    """Each input that can have a gradient, with that gradient or None if the graph returns none."""
    pairs: dict[TensorInput, tuple[T, U | None]] = {}
    for descriptor, value in inputs.items():
        if not isinstance(descriptor, DifferentiableInput | SubclassAttribute):
            continue
        gradient = gradient_of(descriptor, order)
        if gradient is not None:
            pairs[descriptor] = (value, outputs.get(gradient))
    return pairs


def outputs_with_tangents(
    inputs: Mapping[Input, T], outputs: Mapping[Output, U], order: int | None = None
) -> dict[TensorOutput, tuple[U, T | None]]:
    """Each output that can have a tangent, with that tangent or None if the graph takes none."""
    pairs: dict[TensorOutput, tuple[U, T | None]] = {}
    for descriptor, value in outputs.items():
        if not isinstance(descriptor, DifferentiableOutput | SubclassAttributeOut):
            continue
        tangent = tangent_of(descriptor, order)
        if tangent is not None:
            pairs[descriptor] = (value, inputs.get(tangent))
    return pairs


def parameters(inputs: Mapping[Input, T]) -> dict[str, T]:
    """The parameters among the inputs, by qualified name."""
    return {d.name: value for d, value in inputs.items() if isinstance(d, Parameter)}


def buffers(inputs: Mapping[Input, T]) -> dict[str, T]:
    """The buffers among the inputs, by qualified name."""
    return {d.name: value for d, value in inputs.items() if isinstance(d, Buffer)}


def parameter_gradients(outputs: Mapping[Output, T], order: int = 1) -> dict[str, T]:
    """The gradients of parameters among the outputs, by the parameter's qualified name."""
    return {
        d.of.name: value
        for d, value in outputs.items()
        if isinstance(d, Gradient) and isinstance(d.of, Parameter) and d.order == order
    }


def _by_descriptor(pairs: Iterable[tuple[D, T]]) -> dict[D, T]:
    found: dict[D, T] = {}
    for descriptor, value in pairs:
        if descriptor in found:
            raise ValueError(f"two values have the descriptor {descriptor.describe()!r}")
        found[descriptor] = value
    return found
