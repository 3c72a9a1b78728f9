from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import torch

from adjoint.lower.selection import Selection, is_plain
from tests.lowering import THREADS, graph_of

X = torch.arange(12.0).reshape(3, 4)[:, :3]


def test_which_tensors_kernels_can_read() -> None:
    assert is_plain(torch.ones(3))
    assert not is_plain(torch.ones(3, dtype=torch.complex64))
    assert not is_plain(torch.ones(3).to_sparse())
    assert not is_plain(torch.ones(3, device="meta"))
    assert not is_plain(3)


def selected(
    function: Callable[..., Any], *inputs: torch.Tensor, called: Collection[str] = ()
) -> list[str]:
    """The nodes that kernels compute."""
    selection = Selection(THREADS, called)
    nodes = [node for node in graph_of(function, inputs).graph.nodes if node.op == "call_function"]
    return [node.name for node in nodes if selection.item(node) is not None]


def test_nodes_with_a_definition_are_computed_by_kernels() -> None:
    assert selected(lambda x: (x.sin() @ x).sum(), X) == ["sin", "sum_1"]
    assert selected(lambda x: (x.sin() @ x).sum(), X, called=["sin"]) == ["sum_1"]


def test_what_is_empty_or_not_plain_is_called() -> None:
    assert selected(lambda x: x.sin(), X[:0]) == []
    assert selected(lambda x: torch.view_as_real(torch.complex(x, x).sin()) + 1, X) == ["add"]
