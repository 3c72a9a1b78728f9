from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from adjoint.errors import SourceLine
from adjoint.graph.descriptors import Argument, Parameter, Result, SymbolicSize
from adjoint.graph.metadata import (
    CheckpointRegion,
    Mode,
    set_descriptor,
    set_mode,
    set_output_descriptors,
    set_region,
    set_source,
    set_value,
)
from adjoint.graph.show import show, show_call, show_source, show_target

aten = torch.ops.aten
auto_functionalized = torch.ops.higher_order.auto_functionalized
CPU = torch.device("cpu")


def line(number: int, text: str) -> SourceLine:
    return SourceLine("/home/someone/model.py", number, "forward", text)


class Program:
    """Builds a graph, one call after another, under the line, mode and region last set."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.root = torch.nn.Module()
        self.source: SourceLine | None = None
        self.mode = Mode()
        self.region: CheckpointRegion | None = None

    def input(self, name: str, value: Any, descriptor: Any = None) -> Node:
        node = self.graph.placeholder(name)
        set_value(node, value)
        if descriptor is not None:
            set_descriptor(node, descriptor)
        return node

    def call(
        self, target: Callable[..., Any], *args: Any, value: Any = None, **kwargs: Any
    ) -> Node:
        node = self.graph.call_function(target, args, kwargs)
        set_value(node, torch.empty(2, 3) if value is None else value)
        set_source(node, self.source)
        set_mode(node, self.mode)
        set_region(node, self.region)
        return node

    def done(self, *outputs: Any, descriptors: tuple[Any, ...] | None = None) -> GraphModule:
        self.graph.output(outputs)
        if descriptors is not None:
            set_output_descriptors(self.graph, descriptors)
        return GraphModule(self.root, self.graph)


def test_a_program() -> None:
    p = Program()
    weight = p.input("weight", torch.empty(4, 3), Parameter("lin.weight"))
    x = p.input("x", torch.empty(2, 3), Argument(0, "args[0]['x']"))
    p.source = line(12, "    y = self.lin(x)\n")
    t = p.call(aten.t.default, weight, value=torch.empty(4, 3).t())
    y = p.call(aten.mm.default, x, t, value=torch.empty(2, 4))
    p.source = line(13, "return y + 1, y.topk(1)")
    z = p.call(aten.add.Scalar, y, 1, value=torch.empty(2, 4))
    pair = (torch.empty(2, 1), torch.empty(2, 1, dtype=torch.int64))
    top = p.call(aten.topk.default, y, 1, value=pair)
    best = p.call(operator.getitem, top, 0, value=pair[0])
    module = p.done(z, best, None, descriptors=tuple(Result(i, f"result[{i}]") for i in range(3)))
    assert show(module) == (
        """\
def forward(
    weight: f32[4, 3],  # parameter 'lin.weight'
    x: f32[2, 3],       # args[0]['x']
):
    # model.py:12 in forward: y = self.lin(x)
    t_default: f32[3, 4] strides (1, 3) = aten.t.default(weight)
    mm_default: f32[2, 4] = aten.mm.default(x, t_default)
    # model.py:13 in forward: return y + 1, y.topk(1)
    add_scalar: f32[2, 4] = aten.add.Scalar(mm_default, 1)
    topk_default: (f32[2, 1], i64[2, 1]) = aten.topk.default(mm_default, 1)
    getitem: f32[2, 1] = topk_default[0]
    return (
        add_scalar,  # result[0]
        getitem,     # result[1]
        None,        # result[2]
    )"""
    )


def test_blocks() -> None:
    p = Program()
    x = p.input("x", torch.empty(2, 3))
    p.source = line(1, "a = x.sin()")
    p.call(aten.sin.default, x)
    p.mode = Mode(grad_enabled=False)
    p.source = line(3, "b = x.cos()")
    p.call(aten.cos.default, x)
    p.region = CheckpointRegion(0)
    p.call(aten.tan.default, x)
    p.mode = Mode()
    p.source = line(5, "c = x.exp()")
    p.call(aten.exp.default, x)
    p.region = CheckpointRegion(1, "must-save")
    p.call(aten.log.default, x)
    p.region = None
    p.mode = Mode(grad_enabled=False, inference=True)
    p.source = None
    last = p.call(aten.neg.default, x)
    assert show(p.done(last)) == (
        """\
def forward(
    x: f32[2, 3],
):
    # model.py:1 in forward: a = x.sin()
    sin_default: f32[2, 3] = aten.sin.default(x)
    with no_grad:
        # model.py:3 in forward: b = x.cos()
        cos_default: f32[2, 3] = aten.cos.default(x)
    checkpoint #0:
        with no_grad:
            tan_default: f32[2, 3] = aten.tan.default(x)
        # model.py:5 in forward: c = x.exp()
        exp_default: f32[2, 3] = aten.exp.default(x)
    checkpoint #1 (must-save):
        log_default: f32[2, 3] = aten.log.default(x)
    with inference_mode:
        # no line of the user's
        neg_default: f32[2, 3] = aten.neg.default(x)
    return (
        neg_default,
    )"""
    )


def test_a_line_is_shown_once_for_each_run_of_nodes() -> None:
    p = Program()
    x = p.input("x", torch.empty(2, 3))
    for number in (1, 1, 2, 1):
        p.source = line(number, "x = f(x)")
        x = p.call(aten.sin.default, x)
    shown = re.findall(r"# model.py:(\d)", show(p.done(x)))
    assert shown == ["1", "2", "1"]


def test_symbolic_sizes() -> None:
    environment = ShapeEnv()
    value = FakeTensorMode(shape_env=environment).from_tensor(torch.empty(5, 7))
    n = value.shape[0]
    p = Program()
    size = p.input(str(n), n, SymbolicSize(str(n)))
    x = p.input("x", value, Argument(0, "args[0]"))
    double = p.call(operator.mul, size, 2, value=n * 2)
    p.call(aten.slice.Tensor, x, 0, 0, double, value=value)
    text = show(p.done(double))
    assert f"    {n}: SymInt {n}," in text
    assert f"# size {n}\n" in text
    assert f"mul: SymInt 2*{n} = {n} * 2\n" in text
    assert f"slice_tensor: f32[{n}, {value.shape[1]}] = aten.slice.Tensor(x, 0, 0, mul)\n" in text


def test_subgraphs_are_nested_functions() -> None:
    leaf = Program()
    a = leaf.input("a", torch.empty(2))
    inner = Program()
    inner.root.body = leaf.done(leaf.call(aten.sin.default, a, value=torch.empty(2)))
    b = inner.input("b", torch.empty(2))
    body = inner.graph.get_attr("body")
    wrapped = inner.call(
        torch.ops.higher_order.cond, True, body, body, (b,), value=(torch.empty(2),)
    )
    outer = Program()
    outer.root.branch = inner.done(wrapped)
    x = outer.input("x", torch.empty(2), Argument(0, "args[0]"))
    first, again = outer.graph.get_attr("branch"), outer.graph.get_attr("branch")
    assert first.name != again.name
    result = outer.call(torch.ops.higher_order.cond, x, first, again, [x], value=torch.empty(2))
    assert show(outer.done(result, descriptors=(Result(0, "result"),)), "loss") == (
        """\
def loss(
    x: f32[2],  # args[0]
):
    cond: f32[2] = cond(x, branch, branch, [x])
    return (
        cond,  # result
    )

    def branch(
        b: f32[2],
    ):
        cond: (f32[2],) = cond(True, body, body, (b,))
        return (
            cond,
        )

        def body(
            a: f32[2],
        ):
            sin_default: f32[2] = aten.sin.default(a)
            return (
                sin_default,
            )"""
    )


def test_no_inputs_and_no_outputs() -> None:
    assert show(Program().done(descriptors=())) == "def forward():\n    return ()"


def test_a_graph_that_lacks_descriptors_and_values_is_shown_too() -> None:
    graph = Graph()
    x = graph.placeholder("x")
    graph.output((graph.call_function(aten.neg.default, (x,)), x))
    set_output_descriptors(graph, (Result(0, "result[0]"),))
    text = show(GraphModule(torch.nn.Module(), graph))
    assert "    x,\n):\n    neg_default = aten.neg.default(x)\n" in text
    assert "        neg_default,  # result[0]\n        x,\n" in text


def test_a_constant_is_an_attribute() -> None:
    p = Program()
    p.root.register_buffer("constant", torch.ones(2))
    node = p.graph.get_attr("constant")
    set_value(node, torch.ones(2))
    assert "    constant: f32[2] = self.constant\n" in show(p.done(node))


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda p, x: p.call(aten.cat.default, [x, x], 1), "aten.cat.default([x, x], 1)"),
        (
            lambda p, x: p.call(aten.ones_like.default, x, dtype=torch.int64, device=CPU),
            "aten.ones_like.default(x, dtype=torch.int64, device='cpu')",
        ),
        (
            lambda p, x: p.call(aten.clone.default, x, memory_format=torch.channels_last),
            "aten.clone.default(x, memory_format=torch.channels_last)",
        ),
        (
            lambda p, x: p.call(aten.gelu.default, x, approximate="tanh"),
            "aten.gelu.default(x, approximate='tanh')",
        ),
        (lambda p, x: p.call(aten.view.default, x, (2,)), "aten.view.default(x, (2,))"),
        (lambda p, x: p.call(aten.mul.Scalar, x, math.inf), "aten.mul.Scalar(x, float('inf'))"),
        (lambda p, x: p.call(aten.index.Tensor, x, [None, x]), "aten.index.Tensor(x, [None, x])"),
        (lambda p, x: p.call(operator.getitem, x, slice(1, None)), "x[1:]"),
        (lambda p, x: p.call(operator.getitem, x, slice(None, x, 2)), "x[:x:2]"),
        (lambda p, x: p.call(operator.floordiv, x, 2), "x // 2"),
        (lambda p, x: p.call(operator.neg, x), "-x"),
        (lambda p, x: p.call(math.ceil, x), "math.ceil(x)"),
        (lambda p, x: p.call(torch.sym_max, x, 2), "torch.sym_max(x, 2)"),
        (lambda p, x: p.call(torch.sym_sum, (x, 2)), "torch.sym_sum((x, 2))"),
        (lambda p, x: p.call(max, x, 2), "max(x, 2)"),
        (
            lambda p, x: p.call(auto_functionalized, aten.neg_.default, bases={"a": x}),
            "auto_functionalized(aten.neg_.default, bases={'a': x})",
        ),
    ],
)
def test_calls_read_like_python(build: Callable[[Program, Node], Node], text: str) -> None:
    p = Program()
    assert show_call(build(p, p.input("x", torch.empty(2, 3)))) == text


def test_the_text_has_no_addresses() -> None:
    p = Program()
    x = p.input("x", torch.empty(2, 3))
    opaque = p.call(torch.ops.higher_order.cond, x, object(), print)
    assert show_call(opaque) == "cond(x, <object object>, <built-in function print>)"


def test_a_target_without_a_name() -> None:
    class Nameless:
        def __call__(self) -> None: ...

    assert show_target(Nameless()).endswith("Nameless object>")


def test_a_source_line_is_one_line_and_knows_no_folder() -> None:
    assert show_source(SourceLine("/a/b.py", 3, "f", "x = g(\n    y)")) == "b.py:3 in f: x = g( y)"
    assert show_source(SourceLine("b.py", 3, "f", "")) == "b.py:3 in f"
