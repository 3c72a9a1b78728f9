"""The metadata of nodes, behind typed accessors.

torch.fx gives each node a dict, `node.meta`. The keys that adjoint uses, and nothing but these:

| key           | on          | value                                                       |
|---------------|-------------|-------------------------------------------------------------|
| `val`         | any node    | the fake value: shape, dtype and device without contents    |
| `source`      | any node    | the user's line it came from, or None                       |
| `mode`        | calls       | the autograd mode it ran under                              |
| `region`      | calls       | the checkpointed region it ran in, or None                  |
| `grad_of`     | calls       | the forward node whose derivative it belongs to             |
| `order`       | calls       | the order of the derivative it belongs to; without it: 0    |
| `origin`      | any node    | the values that it computes (`graph/origins.py`)            |
| `part_of`     | calls       | the operator that a pass made it for                        |
| `hooks`       | calls       | hooks on saved tensors that it ran under                    |
| `forward`     | calls       | False where forward-mode differentiation was switched off   |
| `descriptor`  | placeholders| what the input means                                        |
| `descriptors` | the output  | what each output means                                      |

All values but `val` are immutable, so that copying a node's dict copies what it says.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import cast

import sympy
import torch
from torch.fx import Graph, GraphModule, Node

from adjoint.errors import SourceLine
from adjoint.graph.descriptors import Input, Output
from adjoint.open_types import Callee, OpArguments, TorchValue
from adjoint.torch_private.symbols import expression


@dataclass(frozen=True, slots=True)
class Mode:
    """The autograd mode under which an operator ran. It decides whether a derivative flows."""

    grad_enabled: bool = True
    inference: bool = False


@dataclass(frozen=True, slots=True)
class CheckpointRegion:
    """One run of `torch.utils.checkpoint`: its values are recomputed in the backward graph.

    `policy` is what selective checkpointing says about this operator; empty if it says nothing.
    """

    index: int
    policy: str = ""
    recomputed: int = 0
    """A number that is unique to the backward graph in which the region was recomputed; 0: it is
    the program's own run."""

    @property
    def run(self) -> tuple[int, int]:
        """Equal for nodes of one run.  Nodes of different runs are never merged, because a value
        that is recomputed must not be the one that was computed first."""
        return self.index, self.recomputed


@dataclass(frozen=True, slots=True)
class GradOf:
    """The forward node, and the order, whose derivative a reverse node belongs to."""

    node: str
    op: str
    order: int


def has_value(node: Node) -> bool:
    """Whether the node carries a fake value. None is a value: some operators return nothing."""
    return "val" in node.meta


def value_of(node: Node) -> TorchValue:
    """The fake value of a node: a tensor, a number or symbol, None, or a sequence of these."""
    if not has_value(node):
        raise LookupError(f"node {node.name} carries no fake value")
    return node.meta["val"]


def value_or_none(node: Node) -> TorchValue:
    """The fake value of a node; None also for a node without one, such as the output node."""
    return node.meta.get("val")


def callee_of(node: Node) -> Callee:
    """The function or operator that a `call_function` node calls."""
    assert not isinstance(node.target, str), f"{node.op} {node.name} calls nothing"
    return node.target


def arguments_of(node: Node) -> OpArguments:
    """The positional arguments of a node, which are what the schema of its operator says."""
    return node.args


def operand_of(node: Node, place: int = 0) -> Node:
    """The argument of a node at a position at which its operator takes a tensor."""
    operand = node.args[place]
    assert isinstance(operand, Node), f"{node.name} has no tensor at {place}"
    return operand


def value_at(argument: object) -> TorchValue:
    """The fake value of a node; any other argument is its own value."""
    return value_or_none(argument) if isinstance(argument, Node) else argument


def computes_tensor(node: Node) -> bool:
    """Whether the value of a node is one tensor."""
    return isinstance(node.meta.get("val"), torch.Tensor)


def tensor_of(node: Node) -> torch.Tensor:
    """The fake tensor of a node that computes one."""
    value = value_of(node)
    if not isinstance(value, torch.Tensor):
        raise LookupError(f"node {node.name} computes no tensor, but {describe_value(value)}")
    return value


def set_value(node: Node, value: object) -> None:
    node.meta["val"] = value


def source_of(node: Node) -> SourceLine | None:
    """The line of the user's program that a node came from, where it is known."""
    return cast("SourceLine | None", node.meta.get("source"))


def set_source(node: Node, source: SourceLine | None) -> None:
    node.meta["source"] = source


def has_mode(node: Node) -> bool:
    return "mode" in node.meta


def mode_of(node: Node) -> Mode:
    """The autograd mode of a node; for one that does not run (a placeholder), the default mode."""
    return cast("Mode", node.meta.get("mode", Mode()))


def set_mode(node: Node, mode: Mode) -> None:
    node.meta["mode"] = mode


def derivative_order(node: Node) -> int:
    """The order of the derivative that a node belongs to; 0: it is the program's own."""
    return cast("int", node.meta.get("order", 0))


def grad_of(node: Node) -> GradOf | None:
    """What a reverse node is the derivative of; None for a node of the program itself."""
    return cast("GradOf | None", node.meta.get("grad_of"))


def has_hooks(node: Node) -> bool:
    """Whether the node ran under hooks on saved tensors, which eager autograd has to call."""
    return "hooks" in node.meta


def forward_mode_was_enabled(node: Node) -> bool:
    return cast("bool", node.meta.get("forward", True))


def entry_mode(graph_module: GraphModule) -> Mode:
    """The mode a graph was captured under; nodes in explicit regions of the program differ."""
    return cast("Mode", graph_module.meta.get("entry_mode", Mode()))


def set_entry_mode(graph_module: GraphModule, mode: Mode) -> None:
    graph_module.meta["entry_mode"] = mode


def region_of(node: Node) -> CheckpointRegion | None:
    """The checkpointed region that a node ran in, if any."""
    return cast("CheckpointRegion | None", node.meta.get("region"))


def set_region(node: Node, region: CheckpointRegion | None) -> None:
    node.meta["region"] = region


# Of the backward graphs in which checkpoints are recomputed.
_RUNS = itertools.count(1)


def next_run() -> int:
    """A number for `CheckpointRegion.recomputed` that no graph of this process has."""
    return next(_RUNS)


def run_of(node: Node) -> tuple[int, int] | None:
    """The run of a checkpoint that a node belongs to, if any."""
    region = region_of(node)
    return None if region is None else region.run


# The region of the node that is being evaluated, while a graph is evaluated inside a capture.
_EVALUATED: ContextVar[CheckpointRegion | None] = ContextVar("_EVALUATED", default=None)


def region_of_evaluated_node() -> CheckpointRegion | None:
    """The region of the node that is being evaluated inside a capture, if any."""
    return _EVALUATED.get()


@contextlib.contextmanager
def evaluated_in(region: CheckpointRegion) -> Iterator[None]:
    """Nodes that a capture makes meanwhile belong to `region`."""
    token = _EVALUATED.set(region)
    try:
        yield
    finally:
        _EVALUATED.reset(token)


def has_descriptor(node: Node) -> bool:
    return "descriptor" in node.meta


def descriptor_of(placeholder: Node) -> Input:
    """What an input of the graph means."""
    if not has_descriptor(placeholder):
        raise LookupError(f"node {placeholder.name} carries no descriptor")
    return cast("Input", placeholder.meta["descriptor"])


def set_descriptor(placeholder: Node, descriptor: Input) -> None:
    if placeholder.op != "placeholder":
        raise ValueError(
            f"node {placeholder.name} is a {placeholder.op}, not an input of its graph"
        )
    placeholder.meta["descriptor"] = descriptor


def input_descriptors(graph: Graph) -> tuple[Input, ...]:
    """What the inputs of a graph mean, in their order."""
    return tuple(descriptor_of(node) for node in inputs_of(graph))


def inputs_of(graph: Graph) -> list[Node]:
    """The inputs of a graph, in their order."""
    return list(graph.find_nodes(op="placeholder"))


def output_node(graph: Graph) -> Node:
    """The node that returns."""
    found: list[Node] = graph.find_nodes(op="output")
    if len(found) != 1:
        raise LookupError(f"a graph returns once, but this one has {len(found)} output nodes")
    return found[0]


def outputs_of(graph: Graph) -> OpArguments:
    """What a graph returns, one entry for each output: nodes, or constants such as None."""
    returned = output_node(graph).args[0]
    return tuple(returned) if isinstance(returned, tuple | list) else (returned,)


def has_output_descriptors(graph: Graph) -> bool:
    return "descriptors" in output_node(graph).meta


def output_descriptors(graph: Graph) -> tuple[Output, ...]:
    """What the outputs of a graph mean, in their order."""
    if not has_output_descriptors(graph):
        raise LookupError("the output node carries no descriptors")
    return cast("tuple[Output, ...]", output_node(graph).meta["descriptors"])


def set_output_descriptors(graph: Graph, descriptors: tuple[Output, ...]) -> None:
    output_node(graph).meta["descriptors"] = tuple(descriptors)


def describe_value(value: object) -> str:
    """A fake value in few words: `f32[3, s0]`, `i64[]`, `SymInt s0`, `(f32[2], None)`."""
    match value:
        case torch.Tensor():
            return _describe_tensor(value)
        case torch.SymInt() | torch.SymFloat() | torch.SymBool():
            return f"{type(value).__name__} {value}"
        case bool() | int() | float() | complex():
            return f"{type(value).__name__} {value}"
        case None:
            return "None"
        case tuple():
            parts = ", ".join(map(describe_value, value))
            return f"({parts},)" if len(value) == 1 else f"({parts})"
        case list():
            return f"[{', '.join(map(describe_value, value))}]"
        case dict():
            return f"{{{', '.join(f'{key!r}: {describe_value(v)}' for key, v in value.items())}}}"
        case _:
            return type(value).__name__


def describe_dtype(dtype: torch.dtype) -> str:
    """`f32` for float32, `bf16` for bfloat16, `f8e4m3fn` for float8_e4m3fn."""
    name = str(dtype).removeprefix("torch.")
    family = re.fullmatch(r"(bfloat|float|complex|uint|int)(\d.*)", name)
    if family is None:
        return name
    short = {"bfloat": "bf", "float": "f", "complex": "c", "uint": "u", "int": "i"}
    return short[family[1]] + family[2].replace("_", "")


def _describe_tensor(value: torch.Tensor) -> str:
    text = f"{describe_dtype(value.dtype)}[{', '.join(map(str, value.shape))}]"
    if value.layout is not torch.strided:
        text += f" {str(value.layout).removeprefix('torch.')}"
    elif not _is_contiguous(value):
        text += f" strides ({', '.join(map(str, value.stride()))})"
    if value.device.type != "cpu":
        text += f" on {value.device}"
    return text


def _is_contiguous(value: torch.Tensor) -> bool:
    """Whether strides are those of a fresh tensor, as far as expressions alone can tell.

    `Tensor.is_contiguous` would decide it for symbolic sizes too, and leave a guard behind.
    """
    sizes = [_without_guards(size) for size in value.shape]
    if 0 in sizes:
        return True
    strides = [_without_guards(stride) for stride in value.stride()]
    expected: int | sympy.Expr = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        # The stride of an axis of size 1 does not matter.
        if size != 1 and stride != expected:
            return False
        expected = expected * size
    return True


def _without_guards(size: int | torch.SymInt) -> int | sympy.Expr:
    """A size that can be multiplied without being traced and compared without adding a guard."""
    return expression(size) if isinstance(size, torch.SymInt) else size
