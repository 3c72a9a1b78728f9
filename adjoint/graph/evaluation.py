"""Running a graph op by op, in eager torch: the meaning that all other ways to run it must keep."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from adjoint.graph.contiguity import WITH_REQUIRED_LAYOUT
from adjoint.graph.metadata import Mode, entry_mode, mode_of, outputs_of, source_of
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.batches import is_vmapped
from adjoint.torch_private.corrected_fakes import returns_argument
from adjoint.torch_private.fake import fake_call, storage_key
from adjoint.torch_private.modes import is_functorch_wrapper
from adjoint.torch_private.operators import HigherOrderOperator, recorded_loop


class InputsWithHistory(list[Any]):
    """Inputs with what autograd knows of them, of which results must know nothing."""


def detach_inputs(inputs: list[Any]) -> None:
    """Let inputs that are tracked be tensors of their own over the same memory."""
    if isinstance(inputs, InputsWithHistory):
        inputs[:] = [each.detach() if isinstance(each, torch.Tensor) else each for each in inputs]


def evaluate(graph_module: fx.GraphModule, inputs: Sequence[Any], captured: bool = False) -> Any:
    """The outputs of the graph.

    Ops outside any `no_grad`, `enable_grad` or `inference_mode` region run under the caller's mode.
    Values are released after their last use.  Under a capture (`captured`) operators with bodies
    are called as such, so that they are captured as such.
    """
    values: dict[fx.Node, Any] = {}
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
        for dead in last_used.get(node, ()):
            del values[dead]
    raise AssertionError("the graph has no output")


def _new_results(results: Sequence[Any], operands: Sequence[Any]) -> tuple[Any, ...]:
    """`results`, each in memory of its own: what an operator returns is new."""
    given = {_memory(each) for each in operands} - {None}
    return tuple(each.clone() if _memory(each) in given else each for each in results)


def _memory(value: Any) -> Any:
    return storage_key(value) if isinstance(value, torch.Tensor) else None


def _stacked_steps(
    body: fx.GraphModule, steps: Sequence[Sequence[Any]], operands: Sequence[Any], carries: int
) -> list[torch.Tensor]:
    """What the steps of a loop give besides what they carry, along a new first axis.

    Where there was no step, one is tried for the shapes.
    """
    if steps:
        return [torch.stack(each) for each in zip(*steps, strict=True)]
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        tried = evaluate(body, operands)[carries:]
    return [each.new_empty((0, *each.shape)) for each in tried]


def _cond(pred: Any, true: fx.GraphModule, false: fx.GraphModule, operands: Any) -> Any:
    if is_vmapped(pred):
        pairs = zip(evaluate(true, operands), evaluate(false, operands), strict=True)
        return tuple(torch.where(pred, *pair) for pair in pairs)
    return _new_results(evaluate(true if bool(pred) else false, operands), operands)


def _while_loop(condition: fx.GraphModule, step: fx.GraphModule, carried: Any, others: Any) -> Any:
    operands, count = [*carried, *others], len(carried)
    steps = []
    while bool(evaluate(condition, [*carried, *others])):
        outputs = evaluate(step, [*carried, *others])
        carried = outputs[:count]
        steps.append(outputs[count:])
    more = len(outputs_of(step.graph)) > count
    stacked = _stacked_steps(step, steps, operands, count) if more else []
    return (*_new_results(carried, operands), *stacked)


def _scan(combine: fx.GraphModule, init: Any, xs: Any, others: Any) -> Any:
    carry, steps = list(init), []
    for index in range(xs[0].shape[0]):
        outputs = evaluate(combine, [*carry, *(x[index] for x in xs), *others])
        carry, step = list(outputs[: len(init)]), outputs[len(init) :]
        steps.append(step)
    empty = [x.new_zeros(x.shape[1:]) for x in xs] if not steps else []
    stacked = _stacked_steps(combine, steps, [*init, *empty, *others], len(init))
    return (*_new_results(carry, [*init, *xs, *others]), *stacked)


def _map(function: fx.GraphModule, xs: Any, others: Any) -> Any:
    return _scan(function, (), xs, others)


def _copy(into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if into.layout is not torch.strided:
        return into.clone().copy_(source, non_blocking)
    return _room(into, source, into).copy_(into).copy_(source, non_blocking)


def strided_from_start(x: torch.Tensor, size: Any, stride: Any, offset: int = 0) -> torch.Tensor:
    """`as_strided` of a value: a value has no memory around it, so offsets count from its start."""
    return x.as_strided(size, stride, x.storage_offset() + offset)


def _copied_from_start(x: torch.Tensor, *place: Any) -> torch.Tensor:
    return strided_from_start(x, *place).clone(memory_format=torch.contiguous_format)


def _room(like: torch.Tensor, *written: torch.Tensor) -> torch.Tensor:
    """Memory for one like `like`; under vmap, for all of the batch that is `written` to it."""
    batched = next((each for each in written if is_functorch_wrapper(each)), None)
    if batched is not None:
        return batched.new_empty_strided(like.shape, like.stride(), dtype=like.dtype)
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _scattered(view: Callable[..., Any]) -> Callable[..., Any]:
    def scatter(x: torch.Tensor, new: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copy = x.clone()
        written = _room(copy, new).copy_(copy) if is_functorch_wrapper(new) else copy
        view(written, *args, **kwargs).copy_(new)
        return written

    return scatter


def _bernoulli(
    like: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return like.clone().bernoulli_(p, generator=generator)


def _normal(
    like: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    return like.clone().normal_(mean, std, generator=generator)


def _randint(like: torch.Tensor, low: int, high: int, **options: Any) -> torch.Tensor:
    if options:
        drawn: torch.Tensor = torch.ops.aten.randint_like.low_dtype(like, low, high, **options)
        return drawn
    return like.clone().random_(low, high)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: Any, **kw: Any
) -> Any:
    """The kernel divides by sizes, and reads along rows.

    Eager chooses another one for empty inputs, and for rows that are not contiguous.
    """
    query, key, value = map(_by_rows, (query, key, value))
    if query.numel() and key.numel() and value.numel():
        return _FLASH(query, key, value, *args, **kw)
    nothing = 0 * (query.sum() + key.sum() + value.sum())
    result = query.new_zeros((*query.shape[:-1], value.shape[-1])) + nothing
    return result, query.new_zeros(query.shape[:-1])


def _by_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _attend_back(
    cotangent: Any, query: Any, key: Any, value: Any, out: Any, *args: Any, **kw: Any
) -> Any:
    if query.numel() and key.numel() and value.numel():
        query, key, value, out = map(_by_rows, (query, key, value, out))
        return _FLASH_BACK(cotangent, query, key, value, out, *args, **kw)
    return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)


def _reduced_product(sparse: torch.Tensor, dense: torch.Tensor, reduce: str) -> Any:
    """The kernel says where an extreme element was only if autograd looks; a backward needs it."""
    if torch.is_grad_enabled() and (sparse.requires_grad or dense.requires_grad):
        return _SPARSE_REDUCE(sparse, dense, reduce)
    with torch.enable_grad():
        results = _SPARSE_REDUCE(sparse, dense.detach().requires_grad_(), reduce)
    return tuple(each.detach() for each in results)


def _dense(x: torch.Tensor, dtype: Any = None, masked_grad: bool | None = None) -> torch.Tensor:
    """The cotangent of a sparse value may be dense already, for which the op has no kernel."""
    return x.to_dense(dtype, masked_grad=masked_grad)


_SPARSE_REDUCE = torch.ops.aten._sparse_mm_reduce_impl.default
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACK = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


# What some operators mean, in Python.  The kernels of those with bodies know no modes and no second
# derivative; the pure counterparts of `copy_` and random ops have no derivative at all, those of
# writing through a view none for complex numbers, or (`as_strided_scatter`) a wrong one.
_MEANINGS: dict[Any, Callable[..., Any]] = {
    **WITH_REQUIRED_LAYOUT,
    # A kernel may lay its result out otherwise than its fake does (batch_norm of a transposed
    # input), and then what was a view of the fake needs a copy.
    torch.ops.aten.view.default: torch.reshape,
    torch.ops.aten._unsafe_view.default: torch.reshape,
    # A cotangent may come with its conjugation or its sign still to be applied.
    torch.ops.aten.view_as_real.default: lambda x: torch.view_as_real(x.resolve_conj()),
    torch.ops.aten.view.dtype: lambda x, dtype: x.resolve_conj().resolve_neg().view(dtype),
    torch.ops.aten.copy.default: _copy,
    torch.ops.aten.bernoulli.p: _bernoulli,
    torch.ops.aten.normal_functional.default: _normal,
    torch.ops.aten._to_dense.default: _dense,
    _SPARSE_REDUCE: _reduced_product,
    _FLASH: _attend,
    _FLASH_BACK: _attend_back,
    torch.ops.aten.randint_like.low_dtype: _randint,
    torch.ops.aten._foreach_zero.default: lambda xs: [torch.zeros_like(x) for x in xs],
    torch.ops.aten.select_scatter.default: _scattered(torch.ops.aten.select.int),
    torch.ops.aten.slice_scatter.default: _scattered(torch.ops.aten.slice.Tensor),
    torch.ops.aten.diagonal_scatter.default: _scattered(torch.ops.aten.diagonal.default),
    torch.ops.aten.as_strided.default: strided_from_start,
    torch.ops.aten.as_strided_copy.default: _copied_from_start,
    torch.ops.aten.as_strided_scatter.default: _scattered(torch.ops.aten.as_strided.default),
    torch.ops.higher_order.cond: _cond,
    torch.ops.higher_order.while_loop: _while_loop,
    recorded_loop: _while_loop,
    torch.ops.higher_order.scan: _scan,
    torch.ops.higher_order.map_impl: _map,
}


# The operators that go along the first axis of tensors: which of their arguments these are.
_OVER_SLICES = {torch.ops.higher_order.scan: 2, torch.ops.higher_order.map_impl: 1}


def eager_callable(target: Any) -> Any:
    """What to call where an operator stands in a graph."""
    meaning = _MEANINGS.get(target, target)
    return _in_new_memory(meaning) if returns_argument(target) else meaning


def _in_new_memory(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, of which a graph takes for granted that what it returns is new."""

    def run(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        given = {_memory(each) for each in trees.leaves((args, kwargs))} - {None}
        return trees.map_leaves(
            lambda leaf: leaf.clone() if _memory(leaf) in given else leaf, result
        )

    return run


def call_on_fakes(node: fx.Node, values: dict[fx.Node, Any]) -> Any:
    """What a call gives for fake values of its arguments, under the mode there is."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: values[n])
    return fake_call(node.target, args, kwargs, eager_callable(node.target))


def _call(node: fx.Node, values: dict[fx.Node, Any], entry: Mode, captured: bool) -> Any:
    args = fx.map_arg(node.args, lambda n: values[n])
    kwargs = fx.map_arg(node.kwargs, lambda n: values[n])
    target: Any = eager_callable(node.target)
    if captured and isinstance(node.target, HigherOrderOperator) and not _is_unrolled(node, args):
        target = node.target
    mode = mode_of(node)
    hooks = node.meta.get("hooks")
    try:
        if mode == entry and hooks is None:
            return target(*args, **kwargs)
        with contextlib.ExitStack() as stack:
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


def _is_unrolled(node: fx.Node, args: Any) -> bool:
    """A loop of so many steps over a batch of `torch.func.vmap`, which knows ops and not bodies."""
    if node.target not in _OVER_SLICES or not any(map(is_functorch_wrapper, trees.leaves(args))):
        return False
    return not symbols.is_unbacked_int(args[_OVER_SLICES[node.target]][0].shape[0])


def _last_uses(graph_module: fx.GraphModule) -> dict[fx.Node, list[fx.Node]]:
    """For each node, the nodes whose values nothing after it needs.  Computed once a module."""
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
