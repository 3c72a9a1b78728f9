"""Reverse mode through branches and loops: the reverse of a body is a body.

The reverse of a branch is a branch.  The reverse of a loop is a `scan` in the opposite direction
that carries cotangents: those of the carried values, and the accumulated ones of what every step
takes. A reverse body takes the inputs of the body and the random numbers drawn in it, and
recomputes everything else.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import fx

from adjoint.differentiate.activity import active_loop_results
from adjoint.differentiate.copying import Copying, inline
from adjoint.differentiate.expansion import is_random, saved_carries
from adjoint.graph.descriptors import Argument, Result
from adjoint.graph.metadata import (
    Mode,
    inputs_of,
    outputs_of,
    set_descriptor,
    set_output_descriptors,
    value_of,
)
from adjoint.graph.purity import is_impure
from adjoint.open_types import OpArgument, TorchValue
from adjoint.trace.tracer import Tracer

# Makes the joint graph of a body; also returns the sizes from outside that are its last inputs.
Differentiate = Callable[
    [fx.GraphModule, Sequence[int], Sequence[int]], tuple[fx.GraphModule, Sequence[object]]
]

aten = torch.ops.aten
operators = torch.ops.higher_order


@dataclass
class _Joint:
    """The joint graph of a body, with its inputs and outputs sorted by kind."""

    graph_module: fx.GraphModule
    operands: list[fx.Node]
    tangents: dict[int, fx.Node]
    """By the position of the result."""
    sizes: list[fx.Node]
    outside: Sequence[object]
    """The values of `sizes` in the enclosing graph."""
    random: dict[int, fx.Node]
    """Results that cannot be recomputed because they are random, by position."""
    gradients: dict[int, fx.Node]
    """By the position of the operand; absent where zero."""


def _joint(
    differentiate: Differentiate, body: fx.GraphModule, of: Sequence[int], wrt: Sequence[int]
) -> _Joint:
    inputs = inputs_of(body.graph)
    for index, node in enumerate(inputs):
        set_descriptor(node, Argument(index, f"operand[{index}]"))
    count = len(outputs_of(body.graph))
    described = tuple(Result(index, f"result[{index}]") for index in range(count))
    set_output_descriptors(body.graph, described)
    graph_module, outside = differentiate(body, of, wrt)
    entering, returned = inputs_of(graph_module.graph), outputs_of(graph_module.graph)
    first, after = len(inputs), len(inputs) + len(of)
    gradients = zip(wrt, returned[count:], strict=True)
    return _Joint(
        graph_module,
        entering[:first],
        dict(zip(of, entering[first:after], strict=True)),
        entering[after:],
        outside,
        {place: node for place, node in enumerate(returned[:count]) if is_random(node)},
        {place: node for place, node in gradients if node is not None},
    )


class _Reverse:
    """A reverse body under construction: the part of a joint graph that computes gradients."""

    def __init__(self, joint: _Joint) -> None:
        self.joint = joint
        self.copying = Copying(joint.graph_module)
        self.copies: dict[fx.Node, OpArgument] = {}

    def input(self, name: str, value: object) -> fx.Node:
        return self.copying.emitter.placeholder(name, value)

    def input_for(self, node: fx.Node, name: str) -> fx.Node:
        """Make `node` the next input."""
        self.copies[node] = self.input(name, value_of(node))
        return self.copies[node]  # type: ignore[no-any-return]

    def input_for_carried(self, node: fx.Node) -> fx.Node:
        """Make a carried value of the loop the next input; a number was stacked as a tensor."""
        value, emitter = value_of(node), self.copying.emitter
        if isinstance(value, torch.Tensor):
            return self.input_for(node, "carried")
        with self.copying.tracer.untraced():
            made = self.input("carried", torch.empty((), dtype=torch.int64))
        read = emitter.call(aten._local_scalar_dense.default, (made,), mode=Mode(), value=value)
        emitter.bind_symbols(read, value)
        self.copies[node] = read
        return made

    def run(self) -> dict[int, fx.Node]:
        """Copy what computes the gradients; returns these by the position of the operand."""
        module = self.joint.graph_module
        for node in self.joint.random.values():
            if node.target is operator.getitem:
                # All its results are inputs, and it must not run again.
                self.copies[node.args[0]] = None  # type: ignore[index]
        inline(module, self.copies, self.copying.copy)
        return {place: self.copies[node] for place, node in self.joint.gradients.items()}

    def call(self, op: Callable[..., object], *args: object) -> fx.Node:
        return self.copying.emitter.call(op, args, mode=Mode())

    def finish(self, outputs: Sequence[object]) -> fx.GraphModule:
        made = self.copying.finish(outputs)
        made.graph.find_nodes(op="output")[0].meta.pop("descriptors", None)
        again = [n.name for n in made.graph.nodes if is_impure(n) and "order" not in n.meta]
        assert not again, f"the reverse of a body would run {again} once more"
        return made


def reverse_cond(
    tracer: Tracer,
    differentiate: Differentiate,
    branches: Sequence[fx.GraphModule],
    pred: object,
    operands: Sequence[TorchValue],
    results: Sequence[object],
    cotangents: Sequence[object],
    wrt: Sequence[int],
) -> dict[int, torch.Tensor]:
    """The cotangents of the operands `wrt` of a `cond`, by position: a `cond` of reverse branches.

    Both branches return cotangents of the same operands, so zeros are materialized here.
    """
    of = [place for place, each in enumerate(cotangents) if each is not None]
    with tracer.paused():
        joints = [_joint(differentiate, branch, of, wrt) for branch in branches]
        random = sorted(joints[0].random.keys() | joints[1].random.keys())
        sizes = [each for joint in joints for each in joint.outside]
        given = [place for place in wrt if any(place in joint.gradients for joint in joints)]
        graphs = [_reverse_branch(joint, joints, random, results, given) for joint in joints]
        inputs = [*operands, *(cotangents[i] for i in of), *(results[i] for i in random), *sizes]
        inputs = _used_by_any(graphs, inputs)
    if not given:
        return {}
    with tracer.untraced():
        gradients = [torch.empty_like(operands[place]) for place in given]
    emitter = tracer.emitter
    names = ("reverse_true", "reverse_false")
    bodies = [emitter.attribute(n, g) for n, g in zip(names, graphs, strict=True)]
    args = (tracer.nodes(pred), *bodies, tuple(tracer.nodes(inputs)))
    _emit(tracer, operators.cond, args, gradients)
    return dict(zip(given, gradients, strict=True))


def _reverse_branch(
    joint: _Joint,
    both: Sequence[_Joint],
    random: Sequence[int],
    results: Sequence[object],
    given: Sequence[int],
) -> fx.GraphModule:
    reverse = _Reverse(joint)
    operands = [reverse.input_for(node, "operand") for node in joint.operands]
    for node in joint.tangents.values():
        reverse.input_for(node, "cotangent")
    for place in random:
        made = reverse.input("random", results[place])
        if place in joint.random:
            reverse.copies[joint.random[place]] = made
    for each in both:
        for node in each.sizes:
            reverse.input_for(node, "size")
    gradients = reverse.run()
    return reverse.finish(
        [
            gradients.get(place) or reverse.call(aten.zeros_like.default, operands[place])
            for place in given
        ]
    )


def _used_by_any(graphs: Sequence[fx.GraphModule], inputs: Sequence[object]) -> list[object]:
    """`inputs` without those that none of the `graphs` uses, which are removed from the graphs."""
    left: list[object] = []
    for *nodes, value in zip(*(inputs_of(each.graph) for each in graphs), inputs, strict=True):
        if any(node.users for node in nodes):
            left.append(value)
        else:
            for node in nodes:
                node.graph.erase_node(node)
    return left


@dataclass
class _LoopInputs:
    """Inputs of a reverse loop of one kind: placeholders of its body, and their outer values."""

    nodes: list[fx.Node] = field(default_factory=list)
    values: list[TorchValue] = field(default_factory=list)

    def add(self, node: fx.Node, value: object) -> None:
        self.nodes.append(node)
        self.values.append(value)

    def drop_unused(self, at_least: int = 0) -> None:
        for place in reversed(range(len(self.nodes))):
            if not self.nodes[place].users and len(self.nodes) > at_least:
                self.nodes[place].graph.erase_node(self.nodes[place])
                del self.nodes[place], self.values[place]


@dataclass(frozen=True)
class LoopCall:
    """A call of a loop operator: its body, and the fakes of its operands and results."""

    body: fx.GraphModule
    init: Sequence[TorchValue]
    xs: Sequence[object]
    others: Sequence[object]
    results: Sequence[object]
    """The final carried values, then the stacked other results of the steps."""

    @property
    def operands(self) -> list[TorchValue]:
        return [*self.init, *self.xs, *self.others]


def reverse_loop(
    tracer: Tracer,
    differentiate: Differentiate,
    loop: LoopCall,
    cotangents: Sequence[object],
    wrt: Iterable[int],
) -> dict[int, torch.Tensor]:
    """The cotangents of the operands `wrt` of a loop, by position: a `scan` in reverse."""
    carries, first_other = len(loop.init), len(loop.init) + len(loop.xs)
    with tracer.paused():
        joint = _joint_of_step(differentiate, loop, cotangents, set(wrt))
        reverse = _Reverse(joint)
        before = [place for place in joint.tangents if place < carries]
        summed = [place for place in joint.gradients if place >= first_other]
        each_step = [place for place in joint.gradients if carries <= place < first_other]
        back = [reverse.input_for(joint.tangents[place], "cotangent") for place in before]
        sums = [reverse.input("sum", loop.operands[place]) for place in summed]
        steps = _steps(reverse, loop, cotangents)
        others = _LoopInputs()
        for node, value in zip(joint.operands[first_other:], loop.others, strict=True):
            others.add(reverse.input_for(node, "operand"), value)
        for node, value in zip(joint.sizes, joint.outside, strict=True):
            others.add(reverse.input_for(node, "size"), value)
        gradients = reverse.run()
        carried = [
            gradients[place] if place in gradients else reverse.call(aten.zeros_like.default, node)
            for place, node in zip(before, back, strict=True)
        ]
        added = [
            reverse.call(aten.add.Tensor, node, gradients[place])
            for place, node in zip(summed, sums, strict=True)
        ]
        graph = reverse.finish([*carried, *added, *(gradients[place] for place in each_step)])
        # `scan` takes its trip count from the sliced tensors, so one of them stays.
        steps.drop_unused(at_least=1)
        others.drop_unused()
    if not gradients:
        return {}
    given = {place: each for place, each in enumerate(cotangents) if each is not None}
    init = [given[place] if place in given else _zeros(loop.init[place]) for place in before]
    init += [_zeros(loop.operands[place]) for place in summed]
    places = [*before, *summed, *each_step]
    with tracer.untraced():
        found = [torch.empty_like(loop.operands[place]) for place in places]
    entering = [init, [each.flip(0) for each in steps.values], tuple(others.values)]
    args = (tracer.emitter.attribute("reverse", graph), *tracer.nodes(entering))
    _emit(tracer, operators.scan, args, found)
    first = len(init)
    return dict(zip(places, [*found[:first], *(e.flip(0) for e in found[first:])], strict=True))


def _joint_of_step(
    differentiate: Differentiate, loop: LoopCall, cotangents: Sequence[object], wrt: set[int]
) -> _Joint:
    """The joint graph of the body, with cotangents of all carried values that get one in any
    step."""
    carries = len(loop.init)
    active, results = active_loop_results(loop.body, carries, wrt)
    given = {i for i, each in enumerate(cotangents) if each is not None and results[i]}
    while True:
        joint = _joint(differentiate, loop.body, sorted(given), sorted(active))
        more = {place for place in joint.gradients if place < carries} - given
        if not more:
            return joint
        given |= more


def _steps(reverse: _Reverse, loop: LoopCall, cotangents: Sequence[object]) -> _LoopInputs:
    """The inputs of the reverse body that differ from step to step."""
    steps = _LoopInputs()
    joint, carries = reverse.joint, len(loop.init)
    saved = saved_carries(loop.body, carries)
    for place, node in enumerate(joint.operands[:carries]):
        steps.add(reverse.input_for_carried(node), loop.results[saved[place]])
    for node, value in zip(joint.operands[carries:], loop.xs, strict=False):
        steps.add(reverse.input_for(node, "x"), value)
    for place, node in joint.tangents.items():
        if place >= carries:
            steps.add(reverse.input_for(node, "cotangent"), cotangents[place])
    for place, node in joint.random.items():
        if place >= carries:
            steps.add(reverse.input_for(node, "random"), loop.results[place])
    return steps


def _zeros(like: torch.Tensor) -> torch.Tensor:
    """Zeros that depend only on the sizes of `like`, so that `like` itself need not be saved."""
    return torch.zeros(like.shape, dtype=like.dtype, device=like.device)


def _emit(
    tracer: Tracer,
    op: Callable[..., object],
    args: tuple[object, ...],
    results: Sequence[torch.Tensor],
) -> None:
    node = tracer.emitter.call(op, args, mode=Mode(), value=tuple(results))
    tracer.register(tuple(results), node)
