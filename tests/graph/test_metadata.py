from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from adjoint.errors import SourceLine
from adjoint.graph.descriptors import Argument, Parameter, Result
from adjoint.graph.metadata import (
    CheckpointRegion,
    Mode,
    computes_tensor,
    describe_dtype,
    describe_value,
    descriptor_of,
    grad_of,
    has_value,
    input_descriptors,
    mode_of,
    output_descriptors,
    output_node,
    outputs_of,
    region_of,
    set_descriptor,
    set_mode,
    set_output_descriptors,
    set_region,
    set_source,
    set_value,
    source_of,
    tensor_of,
    value_of,
    value_or_none,
)


def test_a_node_carries_what_was_set() -> None:
    node = Graph().placeholder("x")
    line = SourceLine("model.py", 12, "forward", "x = x + 1")
    set_value(node, 3)
    set_source(node, line)
    set_mode(node, Mode(grad_enabled=False))
    set_region(node, CheckpointRegion(2, "must-save"))
    set_descriptor(node, Argument(0, "args[0]"))
    assert value_of(node) == 3
    assert source_of(node) == line
    assert mode_of(node) == Mode(grad_enabled=False)
    assert region_of(node) == CheckpointRegion(2, "must-save")
    assert descriptor_of(node) == Argument(0, "args[0]")


def test_which_nodes_compute_a_tensor() -> None:
    node = Graph().placeholder("x")
    set_value(node, torch.ones(2))
    assert computes_tensor(node)
    assert value_or_none(node) is value_of(node)
    set_value(node, (torch.ones(2),))
    assert not computes_tensor(node)


def test_what_a_bare_node_answers() -> None:
    node = Graph().placeholder("x")
    assert not has_value(node)
    assert value_or_none(node) is None
    assert not computes_tensor(node)
    assert grad_of(node) is None
    assert source_of(node) is None
    assert mode_of(node) == Mode(grad_enabled=True, inference=False)
    assert region_of(node) is None
    with pytest.raises(LookupError, match="node x carries no fake value"):
        value_of(node)
    set_value(node, 3)
    with pytest.raises(LookupError, match="node x computes no tensor, but int 3"):
        tensor_of(node)
    with pytest.raises(LookupError, match="node x carries no descriptor"):
        descriptor_of(node)


def test_nothing_is_a_value() -> None:
    node = Graph().placeholder("x")
    set_value(node, None)
    assert has_value(node)
    assert value_of(node) is None


def test_only_an_input_has_a_descriptor() -> None:
    graph = Graph()
    node = graph.call_function(torch.ops.aten.neg.default, (graph.placeholder("x"),))
    with pytest.raises(ValueError, match="node neg_default is a call_function, not an input"):
        set_descriptor(node, Argument(0, "args[0]"))


def test_descriptors_of_a_graph() -> None:
    graph = Graph()
    x, w = graph.placeholder("x"), graph.placeholder("w")
    set_descriptor(x, Argument(0, "args[0]"))
    set_descriptor(w, Parameter("w"))
    graph.output((w, None))
    assert input_descriptors(graph) == (Argument(0, "args[0]"), Parameter("w"))
    assert outputs_of(graph) == (w, None)
    with pytest.raises(LookupError, match="the output node carries no descriptors"):
        output_descriptors(graph)
    set_output_descriptors(graph, (Result(0, "result[0]"), Result(1, "result[1]")))
    assert output_descriptors(graph) == (Result(0, "result[0]"), Result(1, "result[1]"))
    assert output_node(graph).meta["descriptors"] == output_descriptors(graph)


def test_a_single_value_is_one_output() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output(x)
    assert outputs_of(graph) == (x,)


def test_a_graph_returns_once() -> None:
    with pytest.raises(LookupError, match="a graph returns once, but this one has 0 output nodes"):
        output_node(Graph())


def test_metadata_is_copied_with_a_node() -> None:
    graph = Graph()
    node = graph.placeholder("x")
    set_mode(node, Mode(inference=True))
    copy = Graph().node_copy(node)
    set_mode(node, Mode())
    assert mode_of(copy) == Mode(inference=True)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.empty(3, 4), "f32[3, 4]"),
        (torch.empty((), dtype=torch.int64), "i64[]"),
        (torch.empty(2, 2, dtype=torch.complex64), "c64[2, 2]"),
        (torch.empty(3, 4).t(), "f32[4, 3] strides (1, 4)"),
        (torch.empty(3).expand(2, 3), "f32[2, 3] strides (0, 1)"),
        (torch.empty(8)[::2], "f32[4] strides (2)"),
        (torch.empty(1, 4).as_strided((1, 4), (9, 1)), "f32[1, 4]"),
        (torch.empty(0, 3).t(), "f32[3, 0]"),
        (torch.empty(3, device="meta"), "f32[3] on meta"),
        (torch.empty(3, 4, device="meta").t(), "f32[4, 3] strides (1, 4) on meta"),
        (torch.eye(2).to_sparse(), "f32[2, 2] sparse_coo"),
        ((torch.empty(2), torch.empty(2, dtype=torch.bool)), "(f32[2], bool[2])"),
        ((torch.empty(2),), "(f32[2],)"),
        ([torch.empty(2), None], "[f32[2], None]"),
        ({"a": torch.empty(2)}, "{'a': f32[2]}"),
        (3, "int 3"),
        (True, "bool True"),
        (2.5, "float 2.5"),
        (None, "None"),
        (torch.Generator(), "Generator"),
    ],
)
def test_a_value_in_few_words(value: Any, text: str) -> None:
    assert describe_value(value) == text


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (torch.float64, "f64"),
        (torch.float16, "f16"),
        (torch.bfloat16, "bf16"),
        (torch.float8_e4m3fn, "f8e4m3fn"),
        (torch.complex128, "c128"),
        (torch.uint8, "u8"),
        (torch.int16, "i16"),
        (torch.bool, "bool"),
        (torch.quint8, "quint8"),
    ],
)
def test_a_dtype_in_few_letters(dtype: torch.dtype, text: str) -> None:
    assert describe_dtype(dtype) == text


def symbolic(*shape: int) -> tuple[torch.Tensor, ShapeEnv]:
    environment = ShapeEnv()
    mode = FakeTensorMode(shape_env=environment)
    return mode.from_tensor(torch.empty(shape)), environment


def test_symbolic_values() -> None:
    value, _ = symbolic(5, 7)
    rows, columns = value.shape
    assert type(rows) is not int
    assert describe_value(value) == f"f32[{rows}, {columns}]"
    assert describe_value(rows) == f"SymInt {rows}"
    assert describe_value(rows * 2) == f"SymInt 2*{rows}"
    assert describe_value(rows > 3) == f"SymBool {rows} > 3"
    assert describe_value(value.t()) == f"f32[{columns}, {rows}] strides (1, {columns})"


def test_contiguity_of_symbolic_sizes_is_told_by_their_expressions() -> None:
    value, _ = symbolic(5, 7, 9)
    assert "strides" not in describe_value(value)
    assert "strides" not in describe_value(value + value)
    assert "strides" not in describe_value(value.reshape(-1, 9))
    assert "strides" in describe_value(value.transpose(0, 1))
    assert "strides" in describe_value(value[:, 0])


def test_describing_adds_no_guard() -> None:
    value, environment = symbolic(5, 7)
    narrow = value.as_strided((value.shape[0], value.shape[1]), (value.shape[0], 1))
    before = len(environment.guards)
    assert "strides" in describe_value(narrow)
    describe_value(value.shape[0] == value.shape[1])
    assert len(environment.guards) == before
    # Asking the tensor itself does add one; the test above can fail.
    narrow.is_contiguous()
    assert len(environment.guards) > before
