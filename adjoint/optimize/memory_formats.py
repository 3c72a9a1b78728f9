"""The memory format of convolutional networks on a GPU, chosen once for a whole graph.

    convolution(x, w)  =  convolution(channels_last(x), channels_last(w))

Tensor cores convolve half-precision images whose channels are adjacent in memory.  In another
format, the library converts the operands and the result of each convolution and of each derivative
of one. This pass converts the images of the first convolution of a network. What is computed from
its result keeps the format, up to values whose strides matter: a view that the format does not
allow, a result of the program, a draw of random numbers. There a copy restores the original
strides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import fx

from adjoint.dtypes import HALVES
from adjoint.failing import works_on
from adjoint.graph.copying import copied
from adjoint.graph.leaves import detached
from adjoint.graph.metadata import computes_tensor, set_value, tensor_of, value_of
from adjoint.graph.operations import has_bodies
from adjoint.graph.origins import for_part_of
from adjoint.graph.purity import is_impure
from adjoint.rewrite.refreshing import computing_fakes_of, fake_value, same_values
from adjoint.torch_private import trees
from adjoint.torch_private.operators import HigherOrderOperator
from adjoint.torch_private.symbols import hint, same_numbers

aten = torch.ops.aten


# The positions of images and weights among the arguments; weights are last.  Then that of groups.
CONVOLUTIONS: dict[object, tuple[tuple[int, ...], int]] = {
    aten.convolution.default: ((0, 1), 8),
    aten.convolution_backward.default: ((0, 1, 2), 9),
}

# Where no convolution has more channels than this, converting takes longer than it saves.
MAX_UNCONVERTED_CHANNELS = 64

# What these compute depends on the strides of their argument.
_READS_STRIDES = frozenset(
    {
        aten.as_strided.default,
        aten.as_strided_copy.default,
        aten.as_strided_scatter.default,
        aten.sym_stride.int,
        aten.sym_storage_offset.default,
    }
)


def choose_memory_format(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Let half-precision convolutions on a GPU compute on adjacent channels."""
    if not pays(list(_convolutions(graph_module.graph))):
        return graph_module
    made = copied(graph_module)
    with computing_fakes_of(graph_module):
        formats = _Formats(made.graph)
        for node in list(made.graph.nodes):
            formats.visit(node)
    return made if formats.converts and formats.is_complete else graph_module


def _convolutions(graph: fx.Graph) -> Iterator[fx.Node]:
    """The convolutions of images, and their derivatives, around which the library converts."""
    for node in graph.nodes:
        if node.target in CONVOLUTIONS:
            images = tensor_of(_operands(node)[0])
            if images.dim() == 4 and converts_formats(images):
                yield node


def _operands(convolution: fx.Node) -> list[fx.Node]:
    places, _ = CONVOLUTIONS[convolution.target]
    operands = [convolution.args[place] for place in places]
    return [each for each in operands if isinstance(each, fx.Node)]


def converts_formats(images: torch.Tensor) -> bool:
    """Whether the library converts images of another format before it convolves them."""
    return images.dtype in HALVES and images.device.type == "cuda"


def pays(convolutions: Sequence[fx.Node]) -> bool:
    """Whether the library convolves adjacent channels faster than others, converting included."""
    if any(map(_has_groups, convolutions)):
        return False
    channels = [hint(size) for node in convolutions for size in _weights(node).shape[:2]]
    return max(channels, default=0) > MAX_UNCONVERTED_CHANNELS


def _has_groups(convolution: fx.Node) -> bool:
    """Whether it has several groups of several channels, which the library is slow at."""
    _, place = CONVOLUTIONS[convolution.target]
    groups: object = convolution.args[place]
    return groups != 1 and hint(_weights(convolution).shape[1]) > 1


def _weights(convolution: fx.Node) -> torch.Tensor:
    return tensor_of(_operands(convolution)[-1])


class _Formats:
    """The strides of values before and after the choice; nodes are visited in order."""

    def __init__(self, graph: fx.Graph) -> None:
        self._chosen = set(_convolutions(graph))
        self.is_complete = True
        """Whether each value whose strides matter could be given those of before."""
        self._before: dict[fx.Node, object] = {}
        """The values of nodes that have other strides now."""
        self._converted: dict[fx.Node, fx.Node] = {}
        self._restored: dict[fx.Node, fx.Node] = {}

    @works_on("node")
    def visit(self, node: fx.Node) -> None:
        if node in self._chosen:
            for operand in _operands(node):
                if not has_adjacent_channels(tensor_of(operand)):
                    node.replace_input_with(operand, self._convert(operand, node))
        elif not any(operand in self._before for operand in node.all_input_nodes):
            return
        if depends_on_strides(node):
            self._restore_operands(node)
            return
        try:
            value = trees.map_leaves(detached, fake_value(node))
        except (RuntimeError, ValueError):
            # A view that these strides do not allow.
            self._restore_operands(node)
            return
        if not same_values(value, value_of(node)):
            self._before[node] = value_of(node)
            set_value(node, value)

    @property
    def converts(self) -> bool:
        """Whether something is converted: a graph with the format already has it everywhere."""
        return bool(self._converted)

    def _convert(self, node: fx.Node, user: fx.Node) -> fx.Node:
        if node not in self._converted:
            self._converted[node] = _copy(node, torch.channels_last, user)
        return self._converted[node]

    def _restore_operands(self, node: fx.Node) -> None:
        for operand in node.all_input_nodes:
            if operand in self._before:
                if operand not in self._restored:
                    self._restored[operand] = self._restore(operand, node)
                node.replace_input_with(operand, self._restored[operand])

    def _restore(self, node: fx.Node, user: fx.Node) -> fx.Node:
        if not computes_tensor(node):
            self.is_complete = False
            return node
        copy = _copy(node, torch.contiguous_format, user)
        self.is_complete &= same_values(value_of(copy), self._before[node])
        return copy


def depends_on_strides(node: fx.Node) -> bool:
    """Whether what the node computes, or draws, depends on the strides of its arguments."""
    if node.op != "call_function" or isinstance(node.target, HigherOrderOperator):
        return True
    return is_impure(node) or has_bodies(node) or node.target in _READS_STRIDES


def has_adjacent_channels(images: torch.Tensor) -> bool:
    """Whether channels are adjacent in memory, and images are dense."""
    _, channels, height, width = images.shape
    strides = (channels * height * width, 1, channels * width, channels)
    return same_numbers(images.stride(), strides)


def _copy(node: fx.Node, memory_format: torch.memory_format, user: fx.Node) -> fx.Node:
    """A copy of a tensor with the strides of a memory format, right before its first user."""
    with node.graph.inserting_before(user):
        copy = node.graph.create_node("call_function", aten.clone.default)
    copy.args, copy.kwargs = (node,), {"memory_format": memory_format}
    of = node if user.op == "output" else user
    copy.meta = for_part_of(of, tensor_of(node).clone(memory_format=memory_format))
    return copy
