"""The interpreter: runs a graph op by op in eager torch.

It defines what a graph means; native programs must agree with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import torch
from torch import fx

from adjoint.graph.eager_functions import EAGER_FUNCTIONS
from adjoint.graph.leaves import detached
from adjoint.graph.metadata import (
    Mode,
    callee_of,
    entry_mode,
    evaluated_in,
    mode_of,
    outputs_of,
    region_of,
    source_of,
)
from adjoint.open_types import Callee, OpArgument, OpArguments, OpKeywords, TorchValue
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.batches import is_vmapped
from adjoint.torch_private.fake import fake_call, storage_key
from adjoint.torch_private.functorch import is_functorch_wrapper
from adjoint.torch_private.learned_fakes import returns_argument
from adjoint.torch_private.operators import HigherOrderOperator, recorded_loop


class InputsWithHistory(list[TorchValue]):
    """Inputs that may have autograd history, which the results must not inherit."""

    __slots__ = ()


class InOwnMemory(list[object]):
    """Outputs of a graph that alias neither each other nor an input."""

    __slots__ = ()


def detach_inputs(inputs: list[object]) -> None:
    """Replace inputs that have histories by detached tensors over the same storage."""
    if isinstance(inputs, InputsWithHistory):
        inputs[:] = map(detached, inputs)


# Is shown each call of an evaluation: node, arguments, keyword arguments, result.
Check: TypeAlias = Callable[[fx.Node, OpArguments, OpKeywords, object], None]


def evaluate_taking(
    graph_module: fx.GraphModule, inputs: list[object], check: Check | None = None
) -> Sequence[object]:
    """Evaluate the graph; takes the inputs out of the list, to free each after its last use."""
    taken = _taken(inputs)
    return evaluate(graph_module, taken, check=check)  # type: ignore[arg-type, no-any-return]


def _taken(inputs: list[object]) -> Iterator[object]:
    inputs.reverse()
    while inputs:
        yield inputs.pop()


def evaluate(
    graph_module: fx.GraphModule,
    inputs: Sequence[object],
    captured: bool = False,
    check: Check | None = None,
) -> TorchValue:
    """The outputs of the graph; `check` is shown each call.

    Ops outside any `no_grad`, `enable_grad` or `inference_mode` region run under the caller's mode.
    Values are released after their last use.  `captured`: a capture is under way, so higher-order
    operators are called as they are, for the capture to see, rather than interpreted.
    """
    values: dict[fx.Node, TorchValue] = {}
    remaining = iter(inputs)
    entry = entry_mode(graph_module)
    last_used = _last_uses(graph_module)
    for node in graph_module.graph.nodes:
        if node.op == "output":
            return fx.map_arg(node.args[0], lambda n: values[n])
        if node.op == "placeholder":
            values[node] = next(remaining)
        elif node.op == "get_attr":
            values[node] = getattr(graph_module, node.target)
        else:
            values[node] = _call(node, values, entry, captured)
            if check is not None:
                args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
                check(node, args, kwargs, values[node])
        for dead in last_used.get(node, ()):
            del values[dead]
    raise AssertionError("the graph has no output")


def _new_results(results: Sequence[TorchValue], operands: Sequence[object]) -> tuple[object, ...]:
    """`results`, cloned where they alias an operand: an operator returns new tensors."""
    given = {_memory(each) for each in operands} - {None}
    return tuple(each.clone() if _memory(each) in given else each for each in results)


def _memory(value: object) -> int | None:
    return storage_key(value) if isinstance(value, torch.Tensor) else None


def _stacked_steps(
    body: fx.GraphModule,
    steps: Sequence[Sequence[object]],
    operands: Sequence[object],
    carries: int,
) -> list[torch.Tensor]:
    """What the steps of a loop return besides the carried values, stacked along a new first axis.

    After a loop without steps, the shapes come from a trial run of one step.
    """
    if steps:
        return [torch.stack(each) for each in zip(*steps, strict=True)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        trial = evaluate(body, operands)[carries:]
    return [each.new_empty((0, *each.shape)) for each in trial]


def _cond(
    pred: torch.Tensor,
    true: fx.GraphModule,
    false: fx.GraphModule,
    operands: Sequence[object],
) -> object:
    if is_vmapped(pred):
        pairs = zip(evaluate(true, operands), evaluate(false, operands), strict=True)
        return tuple(torch.where(pred, *pair) for pair in pairs)
    return _new_results(evaluate(true if bool(pred) else false, operands), operands)


def _while_loop(
    condition: fx.GraphModule,
    step: fx.GraphModule,
    carried: Sequence[object],
    others: Sequence[object],
) -> object:
    operands, count = [*carried, *others], len(carried)
    steps = []
    while bool(evaluate(condition, [*carried, *others])):
        outputs = evaluate(step, [*carried, *others])
        carried = outputs[:count]
        steps.append(outputs[count:])
    more = len(outputs_of(step.graph)) > count
    stacked = _stacked_steps(step, steps, operands, count) if more else []
    return (*_new_results(carried, operands), *stacked)


def _scan(
    combine: fx.GraphModule,
    init: Sequence[object],
    xs: Sequence[torch.Tensor],
    others: Sequence[object],
) -> object:
    carry, steps = list(init), []
    for index in range(xs[0].shape[0]):
        outputs = evaluate(combine, [*carry, *(x[index] for x in xs), *others])
        carry, step = list(outputs[: len(init)]), outputs[len(init) :]
        steps.append(step)
    empty = [x.new_zeros(x.shape[1:]) for x in xs] if not steps else []
    stacked = _stacked_steps(combine, steps, [*init, *empty, *others], len(init))
    return (*_new_results(carry, [*init, *xs, *others]), *stacked)


def _map(function: fx.GraphModule, xs: Sequence[torch.Tensor], others: Sequence[object]) -> object:
    return _scan(function, (), xs, others)


# Operators that the interpreter does not call directly.  Of higher-order operators, torch's kernels
# ignore autograd modes and have no second derivative.
_IMPLEMENTATIONS: dict[object, Callee] = {
    **EAGER_FUNCTIONS,
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while_loop,
    recorded_loop: _while_loop,
    torch.ops.higher_order.scan: _scan,
    torch.ops.higher_order.map_impl: _map,
}


# For loops over slices of tensors: which argument holds the tensors.
_SLICED_ARGUMENT = {torch.ops.higher_order.scan: 2, torch.ops.higher_order.map_impl: 1}


def eager_callable(target: Callable[..., object]) -> Callee:
    """The function that the interpreter calls for an operator."""
    function = _IMPLEMENTATIONS.get(target, target)
    return _unaliased(function) if returns_argument(target) else function


def _unaliased(function: Callable[..., object]) -> Callee:
    """`function`, with results cloned that alias an argument."""

    def run(*args: object, **kwargs: object) -> object:
        result = function(*args, **kwargs)
        given = {_memory(each) for each in trees.leaves((args, kwargs))} - {None}
        return trees.map_leaves(
            lambda leaf: leaf.clone() if _memory(leaf) in given else leaf, result
        )

    return run


def call_on_fakes(node: fx.Node, values: dict[fx.Node, TorchValue]) -> object:
    """The fake result of a call on fake arguments, under the current mode."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
    callee = callee_of(node)
    return fake_call(callee, args, kwargs, eager_callable(callee))


def _call(node: fx.Node, values: dict[fx.Node, TorchValue], entry: Mode, captured: bool) -> object:
    args = fx.map_arg(node.args, lambda n: values[n])
    kwargs = fx.map_arg(node.kwargs, lambda n: values[n])
    callee = callee_of(node)
    target = eager_callable(callee)
    if captured and isinstance(callee, HigherOrderOperator) and not _is_unrolled(node, args):
        target = callee
    mode = mode_of(node)
    hooks = node.meta.get("hooks")
    region = region_of(node) if captured else None
    try:
        if mode == entry and hooks is None and region is None:
            return target(*args, **kwargs)
        with contextlib.ExitStack() as stack:
            if region is not None:
                stack.enter_context(evaluated_in(region))
            if mode.inference != entry.inference:
                stack.enter_context(torch.inference_mode(mode.inference))
            if mode != entry:
                stack.enter_context(torch.set_grad_enabled(mode.grad_enabled))
            if hooks is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*hooks))
            return target(*args, **kwargs)
    except Exception as error:
        line = source_of(node)
        if line is not None and hasattr(error, "add_note"):
            error.add_note(f"in {node.target}, from {line}")
        raise


def _is_unrolled(node: fx.Node, args: Sequence[OpArgument]) -> bool:
    """Whether a loop is interpreted even under a capture: one with a known trip count over a batch
    of `torch.func.vmap`, which can batch ops but not bodies."""
    if node.target not in _SLICED_ARGUMENT or not any(
        map(is_functorch_wrapper, trees.leaves(args))
    ):
        return False
    return not symbols.is_unbacked_int(args[_SLICED_ARGUMENT[node.target]][0].shape[0])


def _last_uses(graph_module: fx.GraphModule) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the nodes whose values are dead after it.  Computed once per module."""
    key = "last_uses"
    if key not in graph_module.meta:
        seen: set[fx.Node] = set()
        uses: dict[fx.Node, list[fx.Node]] = {}
        for node in reversed(graph_module.graph.nodes):
            for used in (node, *node.all_input_nodes):
                if used not in seen and node.op != "output":
                    seen.add(used)
                    uses.setdefault(node, []).append(used)
                seen.add(used)
        graph_module.meta[key] = uses
    found: dict[fx.Node, list[fx.Node]] = graph_module.meta[key]
    return found
