from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from adjoint.errors import LoadError
from adjoint.exported.running import covering
from tests.exports import assert_as_eager, exported


def energy(x: torch.Tensor) -> torch.Tensor:
    return (x**3).sin().sum()


def test_no_order_beyond_what_was_exported(tmp_path: Path) -> None:
    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    for orders in (0, 1, 2):
        loaded = exported(energy, (x,), tmp_path, orders=orders)
        assert_as_eager(energy, loaded, (x,), orders)
        now = loaded(x)
        for _ in range(orders):
            (now,) = torch.autograd.grad(now.sum(), x, create_graph=True)
        # Until it is asked for, a history is as good as any.
        assert now.requires_grad
        with pytest.raises(LoadError, match=f"orders={orders}, and its derivative"):
            torch.autograd.grad(now.sum(), x)


def test_results_require_grad_as_in_eager(tmp_path: Path) -> None:
    def apart(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.sin(), y.cos(), (x * y).sum(), x.detach() * 2, (x > 0).sum()

    x, y = torch.rand(3), torch.rand(3)
    loaded = exported(apart, (x, y), tmp_path, orders=2)
    for flags in ((True, True), (True, False), (False, True), (False, False)):
        given = [t.clone().requires_grad_(f) for t, f in zip((x, y), flags, strict=True)]
        found = [each.requires_grad for each in loaded(*given)]
        assert found == [each.requires_grad for each in apart(*given)]
    with torch.no_grad():
        assert not any(each.requires_grad for each in loaded(x.requires_grad_(), y))
    with torch.inference_mode():
        assert not any(each.requires_grad for each in loaded(x, y))


def test_batched_gradients_are_refused(tmp_path: Path) -> None:
    x = torch.rand(3, requires_grad=True)
    loaded = exported(lambda x: x.sin(), (x,), tmp_path)
    with pytest.raises(LoadError, match="an exported program has no batched gradients"):
        torch.autograd.grad(loaded(x), x, torch.eye(3), is_grads_batched=True)


def test_results_can_be_differentiated_by_each_other(tmp_path: Path) -> None:
    def chained(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.sin()
        return y, (y * y).sum()

    x = torch.rand(3, dtype=torch.float64, requires_grad=True)
    loaded = exported(chained, (x,), tmp_path, orders=2)
    assert_as_eager(chained, loaded, (x,), 2)
    y, z = loaded(x)
    (found,) = torch.autograd.grad(z, y)
    torch.testing.assert_close(found, 2 * y.detach())


def test_gradients_that_nothing_reaches_are_none(tmp_path: Path) -> None:
    def apart(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.sin(), (x * y).cos()

    x, y = (torch.rand(3, requires_grad=True) for _ in range(2))
    loaded = exported(apart, (x, y), tmp_path, orders=2)
    first, second = loaded(x, y)
    (none,) = torch.autograd.grad(first.sum(), y, allow_unused=True, retain_graph=True)
    assert [none] == [None]
    (found,) = torch.autograd.grad(second.sum(), y)
    (expected,) = torch.autograd.grad(apart(x, y)[1].sum(), y)
    torch.testing.assert_close(found, expected)


def singular(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Where x is 0, the derivative of the first result is infinite."""
    return x.sqrt().sum(), (x.exp() * y).sum(), y.sin().sum(), (x + y).square().sum()


def test_a_missing_cotangent_is_not_zeros(tmp_path: Path) -> None:
    x = torch.tensor([0.0, 1.0, 4.0], dtype=torch.float64, requires_grad=True)
    y = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    loaded = exported(singular, (x, y), tmp_path, orders=2)

    def gradients(
        function: Any, chosen: tuple[int, ...], again: tuple[int, ...]
    ) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
        """Those of the results `chosen`, and those of the gradients `again`."""
        value = sum(function(x, y)[place] for place in chosen)
        once = torch.autograd.grad(value, (x, y), allow_unused=True, create_graph=True)
        squares = [once[n].square().sum() for n in again if once[n] is not None]
        traced = [each for each in squares if each.requires_grad]
        total = torch.stack(traced).sum() if traced else None
        twice = () if total is None else torch.autograd.grad(total, (x, y), allow_unused=True)
        return list(once), list(twice)

    for chosen in ((0,), (1,), (2,), (3,), (1, 2), (0, 3), (1, 2, 3), (0, 1, 2, 3)):
        # The second derivatives of the first are infinite, of either sign.
        for again in ((0,), (1,), (0, 1)) if 0 not in chosen else ((),):
            found = gradients(loaded, chosen, again)
            torch.testing.assert_close(found, gradients(singular, chosen, again))


def test_groups_of_outputs_that_have_cotangents() -> None:
    groups = [(0, 1, 2, 3, 4), (0, 1, 2), (0,), (1, 2), (3, 4)]
    assert list(covering(frozenset({0, 1, 2, 3, 4}), groups)) == [(0, 1, 2, 3, 4)]
    assert list(covering(frozenset({0, 3, 4}), groups)) == [(3, 4), (0,)]
    # One of a group: the others get zeros.
    assert list(covering(frozenset({1, 3, 4}), groups)) == [(3, 4), (1, 2)]
    assert list(covering(frozenset({0, 1}), [(0, 1, 2), (1, 2), (0, 2)])) == [(0, 1, 2)]
