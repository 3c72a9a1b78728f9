"""Why gradients are wrong: because of kernels, of the rule of an op, or of a pass."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import fx

from adjoint.capture.direct import capture
from adjoint.checking.comparing import Mismatch, compare, tolerance_of
from adjoint.checking.copies import copied_inputs, same_draws
from adjoint.checking.locating import Culprit, KernelSearch, Log, called_with, culprit_of_pass
from adjoint.checking.reproduction import of_nodes
from adjoint.compiler import Compiler
from adjoint.graph.derivative import Derivative
from adjoint.graph.evaluation import evaluate
from adjoint.graph.leaves import detached, requires_grad
from adjoint.graph.metadata import callee_of, inputs_of, source_of
from adjoint.graph.show import show_target
from adjoint.options import Options
from adjoint.runtime.calling import graph_inputs
from adjoint.runtime.executable import PlacedCotangents
from adjoint.torch_private import trees
from adjoint.torch_private.dynamo import compiling
from adjoint.torch_private.operators import OpOverload


class DerivativeSearch:
    """The search for what makes the gradients of a graph with inputs and cotangents wrong."""

    def __init__(
        self,
        derivative: Derivative,
        wrt: Sequence[int],
        inputs: Sequence[object],
        cotangents: PlacedCotangents,
        expected: Sequence[object],
        options: Options,
    ) -> None:
        self.derivative, self.wrt, self.inputs = derivative, tuple(wrt), inputs
        self.cotangents, self.expected = dict(cotangents), list(expected)
        self.tolerance = tolerance_of(derivative.graph_module)
        self.options = replace(options, check=None, progress=False)

    def culprit(self) -> Culprit | None:
        """What makes the gradients wrong."""
        found = self._in_kernels()
        found = found or self._in_rules()
        return found or self._in_passes()

    def _in_kernels(self) -> Culprit | None:
        backward, arguments = self._backward(Compiler(self.options))
        return KernelSearch(backward, arguments, self.options).culprit()

    def _backward(self, compiler: Compiler) -> tuple[fx.GraphModule, list[object]]:
        graph_module = self.derivative.graph_module
        return backward_of(graph_module, self.inputs, self.wrt, self.cotangents, compiler)

    def _in_rules(self) -> Culprit | None:
        """The op whose derivative is wrong by itself, the last one first."""
        graph_module = self.derivative.graph_module
        values: dict[fx.Node, tuple[object, object, object]] = {}

        def note(node: fx.Node, args: object, kwargs: object, result: object) -> None:
            values[node] = (args, kwargs, result)

        with torch.no_grad(), same_draws():
            evaluate(graph_module, copied_inputs(self.inputs), check=note)
        for node in reversed(values):
            if isinstance(node.target, OpOverload):
                mismatch = self._rule(node, values[node])
                if mismatch is not None:
                    op = show_target(node.target)
                    why = f"the derivative of {op} is wrong: {mismatch}"
                    placeholders = inputs_of(graph_module.graph)
                    known = dict(zip(placeholders, self.inputs, strict=True))
                    known.update({each: values[each][2] for each in values})
                    script = of_nodes([node], known, graph_module, gradients=True)
                    return Culprit(why, op, source_of(node), script)
        return None

    def _rule(self, node: fx.Node, call: tuple[object, object, object]) -> Mismatch | None:
        """How the derivative of an op differs from torch's, for an arbitrary cotangent."""
        args, kwargs, result = call
        if not any(map(_is_real, trees.leaves(result))):
            return None
        function, tensors = called_with(callee_of(node), args, kwargs)
        leaves = [each.detach().clone().requires_grad_(_is_real(each)) for each in tensors]
        try:
            with torch.enable_grad(), same_draws():
                results = trees.leaves(function(*leaves))
                found = [p for p, each in enumerate(results) if requires_grad(each)]
                cotangents = {place: _cotangent(results[place]) for place in found}
                wrt = [place for place, each in enumerate(leaves) if each.requires_grad]
                if not wrt or not found:
                    return None
                theirs = torch.autograd.grad(
                    [results[place] for place in found],
                    [leaves[place] for place in wrt],
                    list(cotangents.values()),
                    materialize_grads=True,
                )
        except RuntimeError:
            return None  # Torch cannot differentiate it.
        with torch.enable_grad():
            # A result that is a view of an argument would be made outside of the graph.
            captured = capture(lambda *given: _cloned(function(*given)), *tensors)
        inputs = graph_inputs(captured.calling, captured.leaves(tensors))
        compiler = Compiler(self.options)
        graph_module = captured.graph_module
        backward, arguments = backward_of(graph_module, inputs, wrt, cotangents, compiler)
        with torch.no_grad():
            ours = evaluate(backward, arguments)
        ours = [_zeros_for(*pair) for pair in zip(ours, theirs, strict=True)]
        return compare(ours, theirs, tolerance_of(graph_module))

    def _in_passes(self) -> Culprit | None:
        log = Log()
        self._reference((), log)

        def is_wrong(skipped: Sequence[str]) -> bool:
            found = self._reference(skipped)
            return compare(found, self.expected, self.tolerance) is not None

        return culprit_of_pass(log.passes, is_wrong)

    def _reference(self, skipped: Sequence[str], log: Log | None = None) -> list[object]:
        """The gradients, op by op."""
        options = replace(self.options, skip_passes=(*self.options.skip_passes, *skipped))
        backward, arguments = self._backward(Compiler(options, log or Log()))
        with torch.no_grad():
            found = evaluate(backward, arguments)
        return [_zeros_for(one, other) for one, other in zip(found, self.expected, strict=True)]


def _zeros_for(found: object, expected: object) -> object:
    """A gradient that is zero may also be missing."""
    if found is None and isinstance(expected, torch.Tensor):
        return torch.zeros_like(expected)
    return found


def backward_of(
    graph_module: fx.GraphModule,
    inputs: Sequence[object],
    wrt: Sequence[int],
    cotangents: Mapping[int, object],
    compiler: Compiler,
) -> tuple[fx.GraphModule, list[object]]:
    """The backward graph of a graph, and what it is given for these inputs and cotangents."""
    with compiling():
        derivative = compiler.derivative(graph_module, wrt)
        assert derivative is not None, "it has gradients"
        of = tuple(place for place in derivative.order if place in cotangents)
        backward = compiler.backward(derivative, of, wrt)
    with torch.no_grad(), same_draws():
        outputs = evaluate(derivative.graph_module, copied_inputs(inputs))
    saved = derivative.saved_from(inputs, outputs)
    arguments = [saved[place] for place in derivative.saved_for(backward)]
    for place in derivative.cotangents_of(backward):
        given = cotangents.get(place)
        arguments.append(torch.zeros_like(outputs[place]) if given is None else given)
    return backward.graph_module, [detached(each) for each in arguments]


def _cotangent(result: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(result.shape, generator=generator, dtype=torch.float64).to(result)


def _is_real(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _cloned(results: object) -> object:
    def clone(leaf: object) -> object:
        return leaf.clone() if isinstance(leaf, torch.Tensor) else leaf

    return trees.map_leaves(clone, results)
