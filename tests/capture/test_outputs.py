from __future__ import annotations

from torch import Tensor, fx

import adjoint
from adjoint.capture.outputs import Outputs
from adjoint.graph.descriptors import (
    Argument,
    InputMutation,
    IntermediateBase,
    MetadataMutation,
    Result,
    ViewArgument,
    ViewValue,
)
from adjoint.graph.metadata import set_value
from adjoint.trace.aliasing import Alias, Storage
from tests.parity import plain

FIRST, SECOND = Result(0, "result[0]"), Result(1, "result[1]")


def test_outputs_are_described() -> None:
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        z = x * 2
        x.add_(1)
        y.set_(z)  # type: ignore[call-overload]
        w = x * 3
        return w[0], w[1], w.sum()

    captured = adjoint.capture(program, plain(3), plain(3))
    x, y = captured.inputs[:2]
    first, second, third = (Result(i, f"result[{i}]") for i in range(3))
    assert set(captured.outputs) == {
        InputMutation(x),  # type: ignore[arg-type]
        MetadataMutation(y),  # type: ignore[arg-type]
        IntermediateBase((first, second)),
        third,
    }


def node_with(value: object) -> fx.Node:
    node = fx.Graph().placeholder("x")
    set_value(node, value)
    return node


def test_a_base_that_is_a_result_itself_is_described_as_that() -> None:
    outputs = Outputs()
    alias = Alias(Storage(), None)
    assert outputs.base(alias) is None
    index = outputs.add_base(alias, node_with(3))
    outputs.want_base(index, FIRST, whole=False)
    outputs.want_base(index, SECOND, whole=True)
    assert outputs.base(alias) == index
    assert outputs.described() == (SECOND,)


def test_a_base_of_results_and_one_of_moved_inputs() -> None:
    outputs = Outputs()
    moved = MetadataMutation(Argument(0, "args[0]"))
    for wanted in ((moved, FIRST), (moved,)):
        index = outputs.add_base(Alias(Storage(), None), node_with(3))
        for each in wanted:
            outputs.want_base(index, each, whole=False)
    assert outputs.described() == (IntermediateBase((FIRST,)), moved)


def test_what_a_replay_needs_is_returned_once() -> None:
    outputs = Outputs()
    size, value = node_with(3), node_with(plain(2))
    indices = [outputs.replay_value(each) for each in (size, value, size)]
    assert indices == [0, 1, 0]
    assert outputs.described() == (ViewArgument(0), ViewValue(1))
