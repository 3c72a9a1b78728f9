"""Running a graph op by op, in eager torch: the meaning that every other way of running must keep."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx

from adjoint.graph.metadata import Mode, mode_of, source_of


def entry_mode(graph_module: fx.GraphModule) -> Mode:
    """The mode that the graph was captured under; its nodes differ from it in explicit regions."""
    mode = graph_module.meta.get("entry_mode", Mode())
    assert isinstance(mode, Mode)
    return mode


def evaluate(graph_module: fx.GraphModule, inputs: Sequence[Any]) -> Any:
    """The outputs of the graph.

    Ops outside any `no_grad`, `enable_grad` or `inference_mode` region run under the caller's mode.
    Values are released after their last use.
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
            values[node] = _call(node, values, entry)
        for dead in last_used.get(node, ()):
            del values[dead]
    raise AssertionError("the graph has no output")


def _call(node: fx.Node, values: dict[fx.Node, Any], entry: Mode) -> Any:
    args = fx.map_arg(node.args, lambda n: values[n])
    kwargs = fx.map_arg(node.kwargs, lambda n: values[n])
    mode = mode_of(node)
    hooks = node.meta.get("hooks")
    try:
        if mode == entry and hooks is None:
            return node.target(*args, **kwargs)
        with contextlib.ExitStack() as stack:
            if mode != entry:
                if mode.inference != torch.is_inference_mode_enabled():
                    stack.enter_context(torch.inference_mode(mode.inference))
                stack.enter_context(torch.set_grad_enabled(mode.grad_enabled))
            if hooks is not None:
                stack.enter_context(torch.autograd.graph.saved_tensors_hooks(*hooks))
            return node.target(*args, **kwargs)
    except Exception as error:
        line = source_of(node)
        if line is not None and hasattr(error, "add_note"):
            error.add_note(f"in {node.target}, from {line}")
        raise


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
