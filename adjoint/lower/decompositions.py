"""Decomposition: nodes of a graph are replaced by what a torch program for them computes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.copying import GraphCopy
from adjoint.graph.metadata import value_of, value_or_none
from adjoint.graph.origins import for_part_of, inherit
from adjoint.lower.compositions import Composition, NoComposition, composition_of
from adjoint.lower.sizes import sizes
from adjoint.open_types import Callee, OpArguments, OpKeywords, TorchValue
from adjoint.torch_private import trees
from adjoint.torch_private.fake import FakeTensorMode, fake_call, fake_mode_of
from adjoint.torch_private.modes import TorchDispatchMode
from adjoint.torch_private.symbols import same_number
from adjoint.trace.geometry import dense_order

aten = torch.ops.aten


@works_on("node")
def decompose(graph_module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph with operators replaced by their compositions."""
    return rewrite(graph_module, lambda node: composition_of(node.target))


def rewrite(
    graph_module: fx.GraphModule,
    program_of: Callable[[fx.Node], Composition | None],
    used: Sequence[fx.Node] = (),
) -> fx.GraphModule:
    """A copy of the graph with nodes replaced by what programs for them do.

    `used`: nodes whose values programs use besides their arguments.
    """
    copy = GraphCopy(graph_module)
    several: dict[fx.Node, list[fx.Node | None]] = {}
    fake_mode = fake_mode_of(graph_module)
    for node in graph_module.graph.nodes:
        if node.target is operator.getitem and node.args[0] in several:
            part = several[node.args[0]][node.args[1]]
            assert part is not None
            inherit(part, node)
            copy.copies[node] = part
            continue
        program = program_of(node)
        if program is not None:
            found = _expanded(copy, node, program, fake_mode, used)
            if isinstance(found, fx.Node):
                inherit(found, node)
                copy.copies[node] = found
                continue
            if found is not None:
                several[node] = found
                continue
        copy.add(node)
    return copy.finish()


def _expanded(
    copy: GraphCopy,
    node: fx.Node,
    program: Composition,
    fake_mode: FakeTensorMode,
    used: Sequence[fx.Node],
) -> fx.Node | list[fx.Node | None] | None:
    """The nodes that compute the results of `program`; None if it does not apply."""
    values = [value_or_none(n) for n in node.all_input_nodes]
    shapes = [value.shape for value in values if isinstance(value, torch.Tensor)]
    sizes_in: list[object] = [size for shape in shapes for size in shape]
    if any(isinstance(size, int) and size == 0 for size in sizes_in):
        return None
    graph = copy.graph
    recorder = _Recorder(graph, for_part_of(node, None))
    for each in (*node.all_input_nodes, *used):
        recorder.nodes[id(value_of(each))] = copy.copies[each]
    args, kwargs = fx.map_arg((node.args, node.kwargs), value_of)
    start = len(graph.nodes)
    expected = value_of(node)
    with fake_mode, recorder, torch.no_grad():
        try:
            results = _laid_as(expected, program(*args, **kwargs))
        except NoComposition:
            results = None
    if results is None or not _alike(results, expected):
        for extra in reversed(list(graph.nodes)[start:]):
            graph.erase_node(extra)
        return None
    if isinstance(results, torch.Tensor):
        return recorder.nodes[id(results)]
    return [None if each is None else recorder.nodes[id(each)] for each in results]


def _laid_as(expected: TorchValue, results: TorchValue) -> TorchValue:
    """`results`, copied where they have other strides than the operator's own."""
    if isinstance(results, torch.Tensor):
        return _with_strides_of(expected, results)
    pairs = zip(results, expected, strict=False)
    return [
        one if one is None or other is None else _with_strides_of(other, one)
        for one, other in pairs
    ]


def _with_strides_of(expected: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    if not _shaped_alike(result, expected) or _laid_alike(result, expected):
        return result
    order = dense_order(expected)
    if order is None:
        return result
    back = sorted(range(len(order)), key=order.__getitem__)
    return result.permute(order).contiguous().permute(back)


def _alike(results: object, expected: object) -> bool:
    pairs = list(zip(trees.leaves(results), trees.leaves(expected), strict=False))
    return all(
        one is None
        or other is None
        or (one.dtype == other.dtype and _shaped_alike(one, other) and _laid_alike(one, other))
        for one, other in pairs
    )


def _shaped_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    mine, theirs = sizes(one.shape), sizes(other.shape)
    return len(mine) == len(theirs) and all(map(same_number, mine, theirs))


def _laid_alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    axes = zip(one.shape, sizes(one.stride()), sizes(other.stride()), strict=True)
    return all(same_number(a, b) or _is_at_most_one(size) for size, a, b in axes)


def _is_at_most_one(size: object) -> bool:
    """Whether a size is 0 or 1; False for symbolic sizes."""
    return isinstance(size, int) and size <= 1


class _Recorder(TorchDispatchMode):
    """Adds a node to the graph for each operator that a program calls on fake tensors."""

    def __init__(self, graph: fx.Graph, meta: dict[str, object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.graph = graph
        self.meta = {key: value for key, value in meta.items() if key != "val"}
        self.nodes: dict[int, fx.Node] = {}
        self.kept: list[object] = []

    def __torch_dispatch__(
        self, op: Callee, types: object, args: OpArguments = (), kwargs: OpKeywords | None = None
    ) -> object:
        result = fake_call(op, args, kwargs or {})

        def leaf(value: object) -> object:
            return self.nodes[id(value)] if isinstance(value, torch.Tensor) else value

        node_args, node_kwargs = trees.map_leaves(leaf, (args, kwargs or {}))
        node = self.graph.call_function(op)
        # Symbolic sizes stay arguments; `call_function` would make nodes of them.
        node.args, node.kwargs = node_args, node_kwargs
        node.meta = {**self.meta, "val": result}
        self.kept.append(result)
        if isinstance(result, torch.Tensor):
            self.nodes[id(result)] = node
        elif isinstance(result, (tuple, list)):
            for place, each in enumerate(result):
                if isinstance(each, torch.Tensor):
                    part = self.graph.call_function(operator.getitem, (node, place))
                    part.meta = {**self.meta, "val": each}
                    self.nodes[id(each)] = part
        return result
