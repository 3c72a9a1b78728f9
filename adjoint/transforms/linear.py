"""A function captured inside a program, and its derivative as linear maps at that point."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import attrgetter

import torch
from torch import fx

from adjoint.compiler import Compiler
from adjoint.errors import CaptureError
from adjoint.graph.derivative import Backward
from adjoint.graph.descriptors import Argument, Result
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import (
    forward_mode_was_enabled,
    mode_of,
    outputs_of,
    set_descriptor,
    set_mode,
    set_output_descriptors,
)
from adjoint.graph.operations import with_data
from adjoint.graph.purity import draws
from adjoint.graph.reachability import reachable
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.optimize.cse import merge_common_subexpressions
from adjoint.torch_private import trees
from adjoint.torch_private.fake import storage_key
from adjoint.torch_private.functorch import functorch_is_active, outside_functorch
from adjoint.trace.subgraph import Body
from adjoint.trace.tracer import Tracer


class Linearized:
    """`function` at `inputs`: its value, and its derivative in both directions.

    The function is captured as a body inside the program that is being captured.  Its value is
    computed once, together with the saved values; each use of the derivative adds nodes for it.
    """

    def __init__(
        self,
        tracer: Tracer,
        compiler: Compiler,
        function: Callable[..., object],
        inputs: Sequence[torch.Tensor],
        forward: bool = False,
    ) -> None:
        """`forward`: differentiate under `no_grad`, too, as torch's forward mode does."""
        self.tracer = tracer
        self.compiler = compiler
        self.inputs = [tracer.known(each) for each in inputs]
        # A `no_grad` around a transform detaches its results; its function is differentiated still.
        with torch.enable_grad():
            body = Body(tracer)
            with _marked_as_transform(tracer):
                result = body.run(function, _twins(tracer, self.inputs))
        leaves, self.spec = trees.flatten(trees.map_leaves(tracer.known, result))
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        body.read(tensors)
        written = body.written()
        if any(each.requires_grad for each in written):
            raise CaptureError(
                "an in-place write inside a differentiated function",
                "it would mutate a captured Tensor, with a value that has a derivative",
                "return the new value instead, or write what is detached",
                tracer.emitter.source(),
            )
        body.read(written)
        self.lifted = list(body.scope.lifted)
        graph = _described(body.close([*tensors, *written]))
        self.draws = _draws(graph)
        if forward and _record_everywhere(graph) and self._has_history():
            raise CaptureError(
                "no_grad inside a function that is differentiated forward, then in reverse",
                "forward mode passes through it and reverse mode does not, which one program "
                "cannot say",
                "use detach() in place of no_grad()",
                tracer.emitter.source(),
            )
        # Two inner transforms may compute the same value, which need not be differentiated twice.
        merge_common_subexpressions(graph)
        self.wrt = tuple(range(len(self.inputs)))
        with tracer.paused(), outside_functorch():
            inner = tracer.is_in_transform
            self.derivative = compiler.derivative(graph, self.wrt, inner=inner)
        running = graph if self.derivative is None else self.derivative.runs
        self.outputs = list(evaluate(running, [*self.inputs, *self.lifted], captured=True))
        self.results = self.outputs[: len(tensors)]
        for tensor, value in zip(written, self.outputs[len(tensors) :], strict=False):
            # Running statistics of the function, for instance: no derivative flows through them.
            tensor.copy_(value.detach())
        values = iter(self.results)
        filled = [next(values) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.value = trees.unflatten(filled, self.spec)

    def _has_history(self) -> bool:
        """Whether something around the transform may differentiate it again."""
        return any(each.requires_grad for each in (*self.inputs, *self.lifted))

    def pull_back(self, cotangents: Sequence[torch.Tensor | None]) -> list[torch.Tensor]:
        """The cotangents of the inputs, for cotangents of the results (None: zero)."""
        derivative = self.derivative
        given = [i for i in self.differentiable if cotangents[i] is not None]
        if derivative is None or not given:
            return [torch.zeros_like(each) for each in self.inputs]
        with self.tracer.paused(), outside_functorch():
            reverse = self.compiler.backward(derivative, given, self.wrt)
        saved = self._saved(reverse)
        gradients = evaluate(
            self._batched(reverse.graph_module),
            [*saved, *(cotangents[i] for i in given)],
            captured=True,
        )
        return [
            torch.zeros_like(each) if gradient is None else gradient
            for each, gradient in zip(self.inputs, gradients, strict=True)
        ]

    def push_forward(self, tangents: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The tangents of the results, for tangents of the inputs: the transpose of `pull_back`."""
        zeros = [torch.zeros_like(each) for each in self.results]
        given = self.differentiable
        found = self.forward_graph(given)
        if found is None:
            return zeros
        forward, present = found
        saved = self.saved(given)
        entering = [*saved, *(zeros[i] for i in given), *(tangents[i] for i in present)]
        pushed = evaluate(self._batched(forward), entering, captured=True)
        for place, value in zip(given, pushed, strict=True):
            if value is not None:
                zeros[place] = value
        return zeros

    def _batched(self, graph_module: fx.GraphModule) -> fx.GraphModule:
        """The graph with operators that `vmap` has rules for, if it runs under `vmap`."""
        return self.compiler.composed(graph_module) if functorch_is_active() else graph_module

    @property
    def differentiable(self) -> list[int]:
        """The results that depend on the inputs."""
        known = frozenset() if self.derivative is None else self.derivative.differentiable
        return [place for place in range(len(self.results)) if place in known]

    def reverse_graph(self, of: Sequence[int]) -> fx.GraphModule | None:
        """The graph from `saved(of)` and cotangents of the results `of` to those of the inputs."""
        reverse = self._reverse(of)
        return None if reverse is None else reverse.graph_module

    def forward_graph(self, of: Sequence[int]) -> tuple[fx.GraphModule, list[int]] | None:
        """The graph to tangents of the results `of`, and which tangents of inputs it takes.

        It takes `saved(of)`, zeros like the results, then those tangents.
        """
        backward = self.reverse_graph(of)
        if backward is None:
            return None
        with self.tracer.paused(), outside_functorch():
            return self.compiler.transposed(backward, len(self.saved(of)))

    def saved(self, of: Sequence[int]) -> list[object]:
        """What the derivative of the results `of` needs of this point."""
        reverse = self._reverse(of)
        return [] if reverse is None else self._saved(reverse)

    def _reverse(self, of: Sequence[int]) -> Backward | None:
        if self.derivative is None or not of:
            return None
        with self.tracer.paused(), outside_functorch():
            return self.compiler.backward(self.derivative, of, self.wrt)

    def _saved(self, backward: Backward) -> list[object]:
        assert self.derivative is not None
        entering = [*self.inputs, *self.lifted]
        saved = [entering[place] for place in self.derivative.saved_inputs]
        saved += [self.outputs[place] for place in self.derivative.saved_outputs]
        return [saved[place] for place in self.derivative.saved_for(backward)]


@contextlib.contextmanager
def _marked_as_transform(tracer: Tracer) -> Iterator[None]:
    """Run the function of a transform: autograd must not see the histories of its tensors."""
    before, tracer.is_in_transform = tracer.is_in_transform, True
    try:
        yield
    finally:
        tracer.is_in_transform = before


def _twins(tracer: Tracer, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors like `inputs` that require grad and are no leaves, so that they may be written to."""
    with tracer.paused():
        twins = [each.detach().clone().requires_grad_().clone() for each in inputs]
    for each, twin in zip(inputs, twins, strict=True):
        if each.layout is torch.strided and storage_key(each) is not None:
            tracer.displaced.add(twin, each)
    return twins


def _described(module: fx.GraphModule) -> fx.GraphModule:
    entering = [node for node in module.graph.nodes if node.op == "placeholder"]
    for index, node in enumerate(entering):
        set_descriptor(node, Argument(index, f"args[{index}]"))
    returned = outputs_of(module.graph)
    descriptors = tuple(Result(index, f"result[{index}]") for index in range(len(returned)))
    set_output_descriptors(module.graph, descriptors)
    return module


def _draws(graph_module: fx.GraphModule) -> bool:
    """Whether some node draws random numbers."""
    return any(map(draws, graph_module.graph.nodes)) or any(
        map(_draws, subgraphs_of(graph_module).values())
    )


def _record_everywhere(graph_module: fx.GraphModule, is_body: bool = False) -> bool:
    """Let the graph be differentiated where it ran under `no_grad`, too, as forward mode is.

    Nodes that ran with forward mode disabled stay constants, except in bodies of control flow, for
    which torch has rules of its own.  Returns whether a node outside of bodies ran under `no_grad`.
    """
    found = False
    for node in graph_module.graph.nodes:
        if node.op == "call_function":
            mode, enabled = mode_of(node), is_body or forward_mode_was_enabled(node)
            found |= enabled and not mode.grad_enabled and bool(node.all_input_nodes)
            set_mode(node, replace(mode, grad_enabled=enabled))
        if node.target is with_data and mode_of(node).grad_enabled:
            _let_data_be_differentiated(node)
    for body in subgraphs_of(graph_module).values():
        _record_everywhere(body, is_body=True)
    return found


def _let_data_be_differentiated(written: fx.Node) -> None:
    """Let the value of a tensor that was written to under `no_grad` be that of an ordinary write.

    A write to what was detached stays as it is: forward mode does not pass through it either.
    """
    history, data = written.args
    assert isinstance(history, fx.Node)
    assert isinstance(data, fx.Node)
    before = reachable([history], attrgetter("all_input_nodes"))
    made = reachable([data], lambda n: [each for each in n.all_input_nodes if each not in before])
    if not any(each.target is torch.ops.aten.detach.default for each in made - before):
        written.replace_all_uses_with(data)
