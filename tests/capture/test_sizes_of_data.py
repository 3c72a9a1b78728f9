"""Sizes that only a run knows, and sizes of nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

from tests.parity import Route, check, leaf
from tests.versions import TORCH

# Of a tensor of twelve and a number in a tensor.
BY_A_TENSOR: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "narrow": lambda x, n: x.narrow(0, n, 2).sin(),
    "narrow_written": lambda x, n: x.clone().narrow(0, n, 2).mul_(2),
    "slice_to": lambda x, n: x[: n.item()].sin(),
    "slice_from": lambda x, n: x[n.item() :].sin().sum(),
    "select": lambda x, n: x.select(0, n.item()).sin(),  # type: ignore[arg-type]
    "tensor_split": lambda x, n: x.tensor_split(torch.stack([n, n + 2]))[1].sin(),
    "zeros": lambda x, n: torch.zeros(n.item()).sum() + x,  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", BY_A_TENSOR)
def test_a_size_or_place_that_is_read_from_a_tensor(name: str) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        check(BY_A_TENSOR[name], lambda: (leaf(12), torch.tensor(3)), Route.DYNAMO)


def written_to_its_left(x: Tensor) -> Tensor:
    x[:-1] = x[1:] * 3
    return x


EMPTY: dict[str, Callable[[Tensor], Tensor]] = {
    "prod": lambda x: x.prod(0),
    "stack": lambda x: torch.stack([x, x]),
    "einsum": lambda x: torch.einsum("bi,bj->ij", x, x),
    "mean": lambda x: x.mean(1),
    "cumsum": lambda x: x.cumsum(0).sin(),
    "difference": lambda x: x[:, None] - x[None],
    "all_but_the_last": lambda x: x[:-1].square(),
    "neighbours": lambda x: x[1:] * x[:-1],
    "written_to_its_left": lambda x: written_to_its_left(x * 1),
    "below_the_diagonal": lambda x: x.diagonal(-1) * 2,
}


@pytest.mark.parametrize("sizes", [(0, 5, 0, 1), (4, 0, 1, 3)], ids=str)
@pytest.mark.parametrize("name", EMPTY)
def test_batches_of_none_and_one_among_others(name: str, sizes: tuple[int, ...]) -> None:
    function = EMPTY[name]
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="adjoint", dynamic=True, fullgraph=True)
    for size in sizes:
        mine, theirs = (leaf(size, 3) for _ in range(2))
        with torch.no_grad():
            mine.copy_(theirs)
        expected, actual = function(theirs), compiled(mine)
        torch.testing.assert_close(actual, expected)
        (want,) = torch.autograd.grad(expected.sin().sum(), theirs)
        (got,) = torch.autograd.grad(actual.sin().sum(), mine)
        torch.testing.assert_close(got, want)


def normalized(x: Tensor, mask: Tensor) -> Tensor:
    y = x * 1
    y[mask] = y[mask] / torch.norm(y[mask], dim=1).unsqueeze(1)
    return y


# Of a 7 x 3 tensor and a mask of its rows: as potentials select edges within a cutoff.
SELECTED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "norm": lambda x, mask: (x[mask] / torch.norm(x[mask], dim=1, keepdim=True)).sum(0),
    "norm_of_all": lambda x, mask: x[mask].norm(),
    "written": normalized,
    "transposed": lambda x, mask: x[mask].t().reshape(-1) * 2,
    "pairs": lambda x, mask: x[torch.stack([mask.nonzero()[:, 0]] * 2).t().reshape(-1)].sin(),
    "layer_norm": lambda x, mask: F.layer_norm(x[mask], (3,)).sin(),
    "stacked": lambda x, mask: torch.stack(list(x[mask].unbind(1)), 0),
    "softmax": lambda x, mask: x[mask].softmax(0) * x[mask].softmax(1),
    "flipped": lambda x, mask: x[mask].flip(0) * 2,
}


@pytest.mark.parametrize("name", SELECTED)
def test_rows_that_a_mask_selects(name: str) -> None:
    """Compiled whole, at orders 0 to 2: the tests run with warnings of fallbacks as errors."""
    if name == "norm_of_all" and TORCH < (2, 13):
        pytest.skip("Dynamo asks whether the number of elements, which depends on data, is 1")
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        check(
            SELECTED[name],
            lambda: (leaf(7, 3), torch.tensor([1, 0, 1, 1, 0, 0, 1], dtype=torch.bool)),
            Route.DYNAMO,
            order=2,
        )


def summed(x: Tensor, group: Tensor) -> Tensor:
    """By group, of which there are as many as the largest number says."""
    count = int(group.max()) + 1
    return x.new_zeros(count, x.shape[1]).scatter_add(0, group[:, None].expand_as(x), x)


def dipoles(place: Tensor, mass: Tensor, charge: Tensor, molecule: Tensor) -> Tensor:
    """Relative to the centre of mass, as potentials have it."""
    centre = summed(mass * place, molecule) / summed(mass, molecule)
    dipole = summed(charge.tanh() * (place - centre.index_select(0, molecule)), molecule)
    size: Tensor = dipole.norm(dim=-1)
    return size


def trained_on_forces(program: Callable[..., Tensor]) -> tuple[Tensor | None, ...]:
    """A force, and the gradients of a loss on forces and results."""
    torch.manual_seed(0)
    place, charge = leaf(5, 3), leaf(5, 1)
    mass, molecule = torch.linspace(1, 2, 5).double()[:, None], torch.tensor([0, 1, 1, 0, 1])
    out = program(place, mass, charge, molecule)
    (force,) = torch.autograd.grad(out.sum(), place, create_graph=True)
    (force.square().sum() + out.square().sum()).backward()
    return force.detach(), place.grad, charge.grad


def test_a_count_that_is_read_from_a_tensor_several_times() -> None:
    """It is read once, and sizes that were named after other readings are equal to it."""
    counted = CompileCounterWithBackend("adjoint")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        actual = trained_on_forces(torch.compile(dipoles, backend=counted, fullgraph=True))
    assert counted.frame_count == 1
    torch.testing.assert_close(actual, trained_on_forces(dipoles))


def pairs(place: Tensor, scale: Tensor) -> tuple[Tensor, ...]:
    """Of points within a cutoff: results of data-dependent size, and others computed from them."""
    one, other = torch.triu_indices(5, 5, 1)
    vector = place[one] - place[other]
    vector = vector[vector.detach().norm(dim=1) < 2]
    length = vector.norm(dim=1)
    return length, vector / length[:, None], (vector.mean(0) * scale).exp()


def trained_on_pairs(program: Callable[..., tuple[Tensor, ...]]) -> tuple[Tensor | None, ...]:
    torch.manual_seed(0)
    place, scale = leaf(5, 3), leaf()
    length, direction, mean = program(place, scale)
    out = mean.sum() + (length * length * direction.sum(1)).sum()
    (force,) = torch.autograd.grad(out, place, create_graph=True)
    (force.square().sum() + out.square().sum()).backward()
    return force.detach(), place.grad, scale.grad


def test_results_of_data_dependent_size_that_others_are_computed_from() -> None:
    """The derivative of such a result reads its size from what it has, not from the result."""
    counted = CompileCounterWithBackend("adjoint")
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        actual = trained_on_pairs(torch.compile(pairs, backend=counted, fullgraph=True))
    assert counted.frame_count == 1
    torch.testing.assert_close(actual, trained_on_pairs(pairs))
