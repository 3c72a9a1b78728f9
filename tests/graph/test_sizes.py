from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.graph.evaluation import evaluate
from adjoint.graph.metadata import inputs_of, value_of
from adjoint.graph.sizes import NotResizable, Sizing, _like, renamed, resized
from adjoint.graph.subgraphs import subgraphs_of
from adjoint.torch_private import size_guards
from adjoint.torch_private.fake import fake_mode_of


def captured(function: Any, *args: Any) -> torch.fx.GraphModule:
    return adjoint.capture(function, *args, dynamic=True).graph_module


def flatten(x: Tensor, y: Tensor) -> Tensor:
    return torch.cat([x, y]).reshape(-1) * x.shape[0]


def assume(module: torch.fx.GraphModule, size: int) -> bool:
    """Ask, as a rule might, whether the first size of the first input is `size`."""
    (first, *_) = module.graph.find_nodes(op="placeholder")
    with size_guards.assumptions(fake_mode_of(module).shape_env):
        return bool(first.meta["val"].shape[0] == size)


def test_sizes_are_read_off_the_inputs() -> None:
    module = captured(flatten, torch.ones(2, 3), torch.ones(4, 3))
    sizing = Sizing(module)
    sizes = sizing.of([torch.ones(5, 7), torch.ones(6, 7)])
    assert sorted(sizes.values()) in ([5, 6, 7], [5, 6, 7, 7])
    assert sizing.violated(sizes) is None
    assert sizing.is_known_by(sizes)
    assert not sizing.is_known_by(dict(list(sizes.items())[1:]))


def test_what_is_assumed_of_a_size_holds_for_some() -> None:
    module = captured(flatten, torch.ones(2, 3), torch.ones(4, 3))
    sizing = Sizing(module)
    assert assume(module, 2)
    assert sizing.violated(sizing.of([torch.ones(2, 3), torch.ones(9, 3)])) is None
    wrong = sizing.violated(sizing.of([torch.ones(5, 3), torch.ones(9, 3)]))
    assert wrong is not None
    assert wrong.startswith("Eq(")


def test_what_is_assumed_later_counts_for_sizes_that_were_asked_about() -> None:
    module = captured(flatten, torch.ones(2, 3), torch.ones(4, 3))
    sizing = Sizing(module)
    sizes = sizing.of([torch.ones(5, 3), torch.ones(6, 3)])
    assert sizing.violated(sizes) is None
    assert sizing.violated(dict(sizes)) is None
    assert assume(module, 2)
    assert sizing.violated(sizes) is not None
    assert sizing.violated(sizing.of([torch.ones(2, 3), torch.ones(6, 3)])) is None
    assert sizing.violated(sizes) is not None


def test_a_resized_graph_assumes_nothing_but_what_is_true_of_its_sizes() -> None:
    module = captured(flatten, torch.ones(2, 3), torch.ones(4, 3))
    assert assume(module, 2)
    inputs = [torch.rand(5, 3), torch.rand(6, 3)]
    sizes = Sizing(module).of(inputs)
    copy, names = resized(module, sizes)
    assert not assume(copy, 2)
    assert Sizing(copy).violated(renamed(sizes, names)) is None
    assert Sizing(copy).violated(renamed(Sizing(module).of([torch.ones(2, 3)] * 2), names))
    assert torch.equal(evaluate(copy, inputs)[0], flatten(*inputs))
    assert copy.graph.find_nodes(op="placeholder")[0].meta["val"].shape[0].node.hint == 5


def test_a_body_is_resized() -> None:
    def function(x: Tensor) -> Any:
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)) * 2

    module = captured(function, torch.ones(3))
    x = torch.ones(4)
    copy, names = resized(module, Sizing(module).of([x]))
    (size,) = names.values()
    for body in subgraphs_of(copy).values():
        assert body.graph.find_nodes(op="placeholder")[0].meta["val"].shape[0].node.expr == size
    assert torch.equal(evaluate(copy, [x])[0], x.sin() * 2)


def test_sizes_that_only_a_run_knows_are_resized() -> None:
    def function(x: Tensor) -> Any:
        found = x.nonzero()
        return torch.cond(x.sum() > 0, lambda a: a * 2, lambda a: a * 3, (found,)) + found

    module = captured(function, torch.ones(3))
    x = torch.ones(4)
    copy, _ = resized(module, Sizing(module).of([x]))
    assert torch.equal(evaluate(copy, [x])[0], 3 * x.nonzero())


def test_sizes_keep_their_names_in_the_graph_itself() -> None:
    sizes = Sizing(captured(flatten, torch.ones(2, 3), torch.ones(4, 3))).of([torch.ones(2, 3)] * 2)
    assert renamed(sizes, None) is sizes


def test_guards_hold_for_sizes_that_take_the_same_branches() -> None:
    def function(x: Tensor) -> Tensor:
        return x.sin() if x.shape[0] > 4 else x.cos()

    guards = adjoint.capture(function, torch.ones(5, 3), dynamic=True).guards
    assert guards is not None
    assert guards.hold([torch.ones(7, 2)])
    assert not guards.hold([torch.ones(4, 3)])
    assert not guards.hold([torch.ones(2, 7).t()])


def test_what_cannot_be_resized_says_why() -> None:
    module = captured(lambda x: x * 2, torch.ones(3))
    (node,) = inputs_of(module.graph)
    fake_mode = fake_mode_of(module)
    with pytest.raises(NotResizable, match=r"the size s\d+ is that of no input"):
        _like(value_of(node), {}, fake_mode)
    with fake_mode:
        sparse = torch.eye(3).to_sparse()
    with pytest.raises(NotResizable, match=r"an input has the layout torch\.sparse_coo"):
        _like(sparse, {}, fake_mode)
