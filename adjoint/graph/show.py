"""Printing a graph as a Python program, each part under the user line that it came from.

    def forward(
        weight: f32[4, 3],  # parameter 'lin.weight'
        x: f32[s0, 3],      # args[0]
    ):
        # model.py:12 in forward: y = self.lin(x)
        t: f32[3, 4] strides (1, 3) = aten.t.default(weight)
        mm: f32[s0, 4] = aten.mm.default(x, t)
        with no_grad:
            # model.py:14 in forward: scale = y.abs().max()
            abs_1: f32[s0, 4] = aten.abs.default(mm)
            max_1: f32[] = aten.max.default(abs_1)
        return (
            mm,     # result[0]
            max_1,  # result[1]
        )

The text depends only on the graph: not on addresses, folders or hash seeds.
"""

from __future__ import annotations

import math
import operator
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import takewhile
from textwrap import indent

import torch
from torch.fx import GraphModule, Node

from adjoint.errors import SourceLine
from adjoint.graph.metadata import (
    describe_value,
    descriptor_of,
    has_descriptor,
    has_output_descriptors,
    has_value,
    inputs_of,
    mode_of,
    output_descriptors,
    outputs_of,
    region_of,
    source_of,
    value_of,
)
from adjoint.graph.subgraphs import subgraph_of, subgraphs_of
from adjoint.torch_private.operators import HigherOrderOperator, OpOverload, OpOverloadPacket

INDENT = "    "

INFIX: dict[Callable[..., object], str] = {
    operator.add: "+",
    operator.sub: "-",
    operator.mul: "*",
    operator.truediv: "/",
    operator.floordiv: "//",
    operator.mod: "%",
    operator.pow: "**",
    operator.eq: "==",
    operator.ne: "!=",
    operator.lt: "<",
    operator.le: "<=",
    operator.gt: ">",
    operator.ge: ">=",
    operator.and_: "&",
    operator.or_: "|",
    operator.xor: "^",
    operator.lshift: "<<",
    operator.rshift: ">>",
}
PREFIX: dict[Callable[..., object], str] = {
    operator.neg: "-",
    operator.pos: "+",
    operator.invert: "~",
    operator.not_: "not ",
}


def show(graph_module: GraphModule, name: str = "forward") -> str:
    """The program of a graph, followed by those of its subgraphs, indented."""
    inputs = [
        (_with_type(node), descriptor_of(node).describe() if has_descriptor(node) else "")
        for node in inputs_of(graph_module.graph)
    ]
    lines = [*_columns(f"def {name}(", inputs, "):"), *_body(graph_module), *_return(graph_module)]
    functions = [
        indent(show(subgraph, target), INDENT)
        for target, subgraph in subgraphs_of(graph_module).items()
    ]
    return "\n".join([*lines, *(f"\n{function}" for function in functions)])


def show_call(node: Node) -> str:
    """The operation of one node, without its name and type: `aten.add.Tensor(x, 1)`."""
    target, args = node.target, node.args
    if node.op == "get_attr":
        return f"self.{target}"
    if callable(target) and not node.kwargs:
        if target is operator.getitem:
            return f"{_argument(args[0])}[{_index(args[1])}]"
        if target in INFIX and len(args) == 2:
            return f"{_argument(args[0])} {INFIX[target]} {_argument(args[1])}"
        if target in PREFIX and len(args) == 1:
            return f"{PREFIX[target]}{_argument(args[0])}"
    arguments = [*map(_argument, args), *(f"{k}={_argument(v)}" for k, v in node.kwargs.items())]
    return f"{show_target(target)}({', '.join(arguments)})"


def show_target(target: object) -> str:
    """The name of an operator or function as one would write it: `aten.add.Tensor`, `math.ceil`."""
    if isinstance(target, str | OpOverload | OpOverloadPacket | HigherOrderOperator):
        return str(target)
    name = getattr(target, "__name__", None)
    if name is None:
        return _without_addresses(repr(target))
    module = (getattr(target, "__module__", None) or "").removeprefix("_")
    return name if module in ("", "builtins") else f"{module}.{name}"


def show_source(source: SourceLine) -> str:
    """The user's line without the folder of its file: `model.py:12 in forward: y = self.lin(x)`."""
    place = f"{os.path.basename(source.file)}:{source.line} in {source.function}"
    text = " ".join(source.text.split())
    return f"{place}: {text}" if text else place


@dataclass
class _Position:
    """Where the printer stands: the blocks it is inside, and the line last shown."""

    blocks: tuple[str, ...] = ()
    source: SourceLine | None = None


def _body(graph_module: GraphModule) -> Iterator[str]:
    position = _Position()
    for node in graph_module.graph.nodes:
        if node.op in ("placeholder", "output") or subgraph_of(graph_module, node) is not None:
            continue
        yield from _step(position, node)
        yield f"{INDENT * (len(position.blocks) + 1)}{_with_type(node)} = {show_call(node)}"


def _step(position: _Position, node: Node) -> Iterator[str]:
    """The block headers and the source comment between the previous node and this one."""
    blocks, source = _blocks(node), source_of(node)
    same = takewhile(lambda pair: pair[0] == pair[1], zip(blocks, position.blocks, strict=False))
    shared = len(list(same))
    for depth in range(shared, len(blocks)):
        yield f"{INDENT * (depth + 1)}{blocks[depth]}"
    if source != position.source:
        # Without a comment the node would seem to belong to the line above it.
        text = "no line of the user's" if source is None else show_source(source)
        yield f"{INDENT * (len(blocks) + 1)}# {text}"
    position.blocks, position.source = blocks, source


def _blocks(node: Node) -> tuple[str, ...]:
    """The headers of the blocks that a node is inside, outermost first."""
    blocks = []
    region, mode = region_of(node), mode_of(node)
    if region is not None:
        policy = f" ({region.policy})" if region.policy else ""
        blocks.append(f"checkpoint #{region.index}{policy}:")
    if mode.inference:
        blocks.append("with inference_mode:")
    elif not mode.grad_enabled:
        blocks.append("with no_grad:")
    return tuple(blocks)


def _return(graph_module: GraphModule) -> list[str]:
    outputs = [_argument(output) for output in outputs_of(graph_module.graph)]
    meanings = [""] * len(outputs)
    if has_output_descriptors(graph_module.graph):
        # Also for a graph that fails verification: outputs without a descriptor get no comment.
        described = [d.describe() for d in output_descriptors(graph_module.graph)]
        meanings = (described + meanings)[: len(outputs)]
    lines = _columns("return (", list(zip(outputs, meanings, strict=True)), ")")
    return [f"{INDENT}{line}" for line in lines]


def _columns(opening: str, rows: list[tuple[str, str]], closing: str) -> list[str]:
    """One row a line, with the comments aligned."""
    if not rows:
        return [opening + closing]
    width = max(len(text) for text, _ in rows) + 1
    lines = [
        f"{INDENT}{text + ',':{width}}  # {comment}" if comment else f"{INDENT}{text},"
        for text, comment in rows
    ]
    return [opening, *lines, closing]


def _with_type(node: Node) -> str:
    return f"{node.name}: {describe_value(value_of(node))}" if has_value(node) else node.name


def _argument(value: object) -> str:
    """An operand as one would write it in Python."""
    match value:
        case Node():
            # The name under which a subgraph is printed is its target.
            return str(value.target) if _names_a_subgraph(value) else value.name
        case tuple():
            return f"({', '.join(map(_argument, value))}{',' if len(value) == 1 else ''})"
        case list():
            return f"[{', '.join(map(_argument, value))}]"
        case dict():
            return f"{{{', '.join(f'{_argument(k)}: {_argument(v)}' for k, v in value.items())}}}"
        case slice():
            parts = (value.start, value.stop, value.step)
            return f"slice({', '.join(map(_argument, parts))})"
        case torch.device():
            return repr(str(value))
        case float() if not math.isfinite(value):
            return f"float('{value}')"
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return str(value)
        case OpOverload() | OpOverloadPacket() | HigherOrderOperator():
            return str(value)
        case _:
            return _without_addresses(repr(value))


def _index(value: object) -> str:
    if isinstance(value, slice):
        start, stop = ("" if v is None else _argument(v) for v in (value.start, value.stop))
        return f"{start}:{stop}" + ("" if value.step is None else f":{_argument(value.step)}")
    return _argument(value)


def _names_a_subgraph(node: Node) -> bool:
    owner = node.graph.owning_module
    return owner is not None and subgraph_of(owner, node) is not None


def _without_addresses(text: str) -> str:
    return re.sub(r" at 0x[0-9a-fA-F]+", "", " ".join(text.split()))
