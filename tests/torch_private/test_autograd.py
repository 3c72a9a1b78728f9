from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from adjoint.torch_private import autograd


def test_below_autograd_nothing_is_recorded() -> None:
    x = torch.ones(3, requires_grad=True)
    with autograd.below_autograd():
        assert not (x * 2).requires_grad
    assert (x * 2).requires_grad


def test_hooks_in_force() -> None:
    assert autograd.saved_tensor_hooks() is None

    def pack(tensor: Tensor) -> Tensor:
        return tensor

    with saved_tensors_hooks(pack, pack):
        assert autograd.saved_tensor_hooks() == (pack, pack)


def test_versions_can_be_set() -> None:
    x = torch.ones(3)
    autograd.set_version(x, 7)
    assert x._version == x[1:]._version == 7


def test_dual_numbers_have_tangents() -> None:
    x = torch.ones(3)
    assert not autograd.has_tangent([x])
    with forward_ad.dual_level():
        assert not autograd.has_tangent([x, 2, None])
        assert autograd.has_tangent([x, forward_ad.make_dual(x, x)])


class Asking(torch.autograd.Function):
    """Asks, when autograd comes to it, where that goes on."""

    following = autograd.ReachedNodes()
    found: list[tuple[int, ...]]
    zeros: list[Tensor]

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(each * 2 for each in inputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        Asking.found.append(Asking.following.that_run(ctx, object()))
        places = [(ctx, 1), ctx.next_functions[0]]
        Asking.zeros = [autograd.zero_cotangent(*place) for place in places]
        return cotangents


def wanted_of(take: Callable[[Tensor, list[Tensor]], Any], count: int = 3) -> tuple[int, ...]:
    """What autograd goes on to; the first input is no leaf."""
    leaves = [torch.ones(n + 1, 2, requires_grad=True) for n in range(count)]
    Asking.found = []
    (last, *_) = outputs = Asking.apply(leaves[0].exp(), *leaves[1:])  # type: ignore[no-untyped-call]
    take(sum((each.sum() for each in outputs), last.sum()), leaves)
    (found,) = Asking.found
    return found


def test_autograd_says_where_it_goes_on() -> None:
    grad = torch.autograd.grad
    assert wanted_of(lambda loss, leaves: loss.backward()) == (0, 1, 2)
    assert wanted_of(lambda loss, leaves: loss.backward(inputs=[leaves[1]])) == (1,)
    assert wanted_of(lambda loss, leaves: grad(loss, leaves)) == (0, 1, 2)
    assert wanted_of(lambda loss, leaves: grad(loss, leaves[2])) == (2,)
    assert wanted_of(lambda loss, leaves: grad(loss, leaves[0])) == (0,)
    one, other = Asking.zeros
    assert (one.shape, other.shape) == ((2, 2), (1, 2))


def test_what_was_reached_is_for_some_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {"a": True, "b": True, "c": "returned"}
    asked: list[Any] = []

    def answered(node: Any) -> Any:
        asked.append(node)
        if answers[node] == "returned":
            raise RuntimeError("it is a leaf node")
        return answers[node]

    monkeypatch.setattr(autograd, "_will_execute", answered)
    following = autograd.ReachedNodes()
    abc: Any = SimpleNamespace(next_functions=[("a", 0), ("b", 0), ("c", 0), (None, 0)])
    for _ in range(autograd.MAX_RUNS_UNASKED):
        assert following.that_run(abc, "all") == (0, 1, 2, 3)
    assert asked == ["a", "b", "c"]
    answers.update(a=False)
    assert following.that_run(abc, "all") == (1, 2, 3)
    asked.clear()
    # A leaf that was returned is not asked about; what was not reached is, in every run.
    answers.update(a=True, b=False, c=False)
    assert following.that_run(abc, "all") == (0, 2, 3)
    assert asked == ["a", "b"]
    # A leaf may be returned that was not before.
    answers.update(a="returned")
    assert following.that_run(abc, "all") == (0, 2, 3)
    assert following.that_run(abc, "another kind") == (0, 3)


def test_only_the_error_about_leaves_is_an_answer() -> None:
    node = torch.ones(1, requires_grad=True).exp().exp().grad_fn
    assert node is not None
    with pytest.raises(RuntimeError, match="backward pass"):
        autograd.ReachedNodes().that_run(node, 0)


def test_leaves_are_found_through_the_history_of_results() -> None:
    x, w = torch.rand(3, requires_grad=True), torch.rand(3, requires_grad=True)
    unused = torch.rand(3, requires_grad=True)
    found = autograd.leaves_of_history([(x * w).sum(), (x.sin() + unused.detach()).sum()])
    assert {id(each) for each in found} == {id(x), id(w)}
