"""Literals, such as `torch.tensor(2.0)` in a program: what follows from them is computed once.

    exp(literal(2)) = literal(exp(2))          x * literal(2) = x * full((), 2)

What depends on literals alone is computed by eager's own operators when compiling, so its numbers
are eager's. A literal without axes becomes a `full`, which kernels contain as an immediate value.
It is created on the device of the operator that uses it: eager accepts a number in host memory
beside any tensor, but a CUDA graph must not depend on host memory.
"""

from __future__ import annotations

import torch
from torch import fx

from adjoint.failing import works_on
from adjoint.graph.copying import copied
from adjoint.graph.metadata import callee_of, computes_tensor, tensor_of
from adjoint.graph.origins import for_part_of, replace
from adjoint.graph.purity import is_impure, remove_dead_code
from adjoint.open_types import OpKeywords
from adjoint.optimize.uniform import uniform_value
from adjoint.torch_private.fake import fake_mode_of, unset_fake_temporarily
from adjoint.torch_private.graph_modules import add_attribute
from adjoint.torch_private.modes import without_autocast
from adjoint.torch_private.operators import OpOverload, depends_on_data

aten = torch.ops.aten

# Larger results are computed in every call, so that they do not take up memory in between.
MAX_LITERAL_BYTES = 1 << 16

LITERAL = aten.lift_fresh_copy.default

_CPU = torch.device("cpu")


def fold_literals(graph_module: fx.GraphModule) -> fx.GraphModule:
    """Compute what depends on literals alone; the graph itself if there is nothing to do."""
    nodes = graph_module.graph.nodes
    with fake_mode_of(graph_module):
        has_literals = any(node.target is LITERAL for node in nodes)
        folds = has_literals and bool(_new_literals(graph_module))
        if not folds and not any(map(_host_numbers, nodes)):
            return graph_module
        made = copied(graph_module)
        for node, value in _new_literals(made).items() if folds else ():
            replace(node, _constant(made, node, value))
        for node in list(made.graph.nodes):
            for number in _host_numbers(node):
                node.replace_input_with(number, _moved(number, tensor_of(node).device))
    remove_dead_code(made.graph)
    return made


def _new_literals(graph_module: fx.GraphModule) -> dict[fx.Node, torch.Tensor]:
    """The values that depend on literals alone and that something else uses."""
    known: dict[fx.Node, torch.Tensor] = {}
    for node in graph_module.graph.nodes:
        found = _literal(graph_module, node, known)
        if found is not None:
            known[node] = found
    # Literals with axes stay as they are; values that only other literals use are removed.
    is_new = {node: node.target is not LITERAL or not each.dim() for node, each in known.items()}
    return {
        node: each
        for node, each in known.items()
        if is_new[node] and any(user not in known for user in node.users)
    }


@works_on("node")
def _literal(
    graph_module: fx.GraphModule, node: fx.Node, known: dict[fx.Node, torch.Tensor]
) -> torch.Tensor | None:
    """The value of a node that is a literal, or is computed from literals alone."""
    if node.op != "call_function" or not computes_tensor(node):
        return None
    if node.target is LITERAL:
        (source,) = node.all_input_nodes
        value = getattr(graph_module, str(source.target)) if source.op == "get_attr" else None
        if not isinstance(value, torch.Tensor) or value.layout is not torch.strided:
            return None
        return value if _agrees(value, node) else None
    inputs = node.all_input_nodes
    if not inputs or not all(each in known for each in inputs) or not _is_foldable(node):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    target = callee_of(node)
    with unset_fake_temporarily(), without_autocast(), torch.no_grad():
        try:
            computed = target(*args, **kwargs)
        except (RuntimeError, ValueError, IndexError):
            return None  # It is raised when the program runs, as in eager.
    return computed if isinstance(computed, torch.Tensor) and _agrees(computed, node) else None


def _is_foldable(node: fx.Node) -> bool:
    target = node.target
    if not isinstance(target, OpOverload) or target.namespace != "aten" or is_impure(node):
        return False
    value = tensor_of(node)
    sizes: list[object] = [*value.shape]
    if depends_on_data(target) or not all(isinstance(size, int) for size in sizes):
        return False
    return value.numel() * value.element_size() <= MAX_LITERAL_BYTES


def _agrees(value: torch.Tensor, node: fx.Node) -> bool:
    """Whether a real value is what its fake says; not if it is lazily negated or conjugated."""
    fake = tensor_of(node)
    return (
        (value.dtype, value.device, value.shape) == (fake.dtype, fake.device, fake.shape)
        and value.stride() == fake.stride()
        and not (value.is_neg() or value.is_conj())
    )


def _constant(graph_module: fx.GraphModule, node: fx.Node, value: torch.Tensor) -> fx.Node:
    """A node before `node` that gives a known value, in memory of its own."""
    if not value.dim() and not value.is_complex():
        with unset_fake_temporarily():
            number = value.item()
        return _full(node, node, number, value.device)
    name = add_attribute(graph_module, "literal", value)
    with node.graph.inserting_before(node):
        source = node.graph.create_node("get_attr", name)
        copy = node.graph.call_function(LITERAL, (source,))
    source.meta, copy.meta = (for_part_of(node, tensor_of(node)) for _ in range(2))
    return copy


def _host_numbers(node: fx.Node) -> list[fx.Node]:
    """Arguments that are known numbers on the host, of an operator that runs elsewhere."""
    target = node.target
    if not isinstance(target, OpOverload) or not _takes_numbers_of_the_host(target):
        return []
    if not computes_tensor(node) or tensor_of(node).device == _CPU:
        return []
    tensors = [each for each in node.all_input_nodes if computes_tensor(each)]
    return [
        each
        for each in tensors
        if tensor_of(each).device == _CPU
        and not tensor_of(each).dim()
        and uniform_value(each) is not None
    ]


def _takes_numbers_of_the_host(op: OpOverload) -> bool:
    """Whether the operator takes a number in host memory along with tensors elsewhere."""
    return torch.Tag.pointwise in op.tags or op in (aten.copy.default, aten.fill.Tensor)


def _moved(number: fx.Node, device: torch.device) -> fx.Node:
    """The same number, created on `device`."""
    value = uniform_value(number)
    assert value is not None
    return _full(number.next, number, value, device)


def _full(
    before: fx.Node, like: fx.Node, number: bool | int | float, device: torch.device
) -> fx.Node:
    dtype = tensor_of(like).dtype
    settings: OpKeywords = {
        "dtype": dtype,
        "layout": torch.strided,
        "device": device,
        "pin_memory": False,
    }
    with before.graph.inserting_before(before):
        made = before.graph.call_function(aten.full.default, ([], number), settings)
    made.meta = for_part_of(like, torch.full((), number, dtype=dtype, device=device))
    return made
