"""Storages and families: what a write through one tensor means for those that share its memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.parity import ROUTES, Route, Row, Table, check, grown, leaf, plain

table = Table()


@table(lambda: leaf(3, 4), order=2)
def a_view_sees_a_write_to_its_base(x: Tensor) -> Tensor:
    y = x.sin()
    row = y[1]
    y.mul_(x)
    return row * row


@table(lambda: leaf(3, 4), order=2)
def a_base_sees_a_write_to_its_view(x: Tensor) -> Tensor:
    y = x.sin()
    y[1].mul_(x[0])
    return y * y


@table(lambda: leaf(3, 4), order=2)
def a_view_sees_a_write_to_its_sibling(x: Tensor) -> Tensor:
    y = x.sin()
    row, column = y[1], y[:, 2]
    row.mul_(x[0])
    return column * column


@table(lambda: leaf(3, 4))
def views_of_views_see_each_other(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 1
    one = y.t()[1:3]
    two = y.view(-1)[4:]
    one[0].add_(1)
    two.mul_(2)
    return one * 1, two * 1, y


@table(lambda: leaf(3, 8), order=2)
def parts_of_an_unsafe_split_are_written_one_by_one(x: Tensor) -> Tensor:
    one, two, three, four = (x * 2).unsafe_chunk(4, 1)
    one.sigmoid_()
    two.sigmoid_()
    three.tanh_()
    return one * three + two * four


@table(lambda: leaf(3, 8), order=2)
def a_part_of_an_unsafe_split_shows_what_is_written_to_the_whole(x: Tensor) -> tuple[Tensor, ...]:
    whole = x * 2
    one, two = whole.unsafe_split_with_sizes([3, 5], 1)
    two.exp_()
    with torch.no_grad():
        whole.add_(1)
    return one * 3, two * 3, whole * 1


@table(lambda: leaf(4, 8), order=2)
def the_whole_shows_what_is_written_to_a_view_of_a_part(x: Tensor) -> tuple[Tensor, ...]:
    whole = x.sin()
    one, two = whole.unsafe_split(2, 0)
    view = one[0]
    view.mul_(2)
    other = two.t()
    return view * 1, one * 1, two * 1, other * 1, whole * 1


@table(lambda: leaf(3))
def detached_sees_data_not_history(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    cut = y.detach()
    y.mul_(x)
    return cut * 3, y


@table(lambda: leaf(3))
def a_write_through_a_detached_alias(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.detach().mul_(3)
    return y * 1, y


@table(lambda: leaf(3))
def a_write_through_data(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.data.mul_(3)
    y.data[1:].add_(1)
    return y * 1, y


@table(lambda: leaf(3))
def a_write_through_data_of_an_input(x: Tensor) -> Tensor:
    x.data.mul_(3)
    return x * x


@table(lambda: leaf(3))
def a_write_through_a_detached_input(x: Tensor) -> Tensor:
    x.detach().mul_(3)
    return x * x


@table(lambda: (leaf(3), leaf(3)))
def a_detached_alias_gets_a_history_of_its_own(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    cut = y.detach()
    cut.mul_(w)
    return y * 1, cut * 1


@table(lambda: (leaf(3), leaf(3)))
def both_families_written(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    cut = y.detach()
    cut.mul_(w)
    y.mul_(x)
    cut.add_(w)
    return y * 1, cut * 1


@table(lambda: (leaf(3), leaf(3)))
def both_families_returned(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    cut = y.detach()
    cut.mul_(w)
    y.mul_(x)
    return y, cut


@table(lambda: (grown(3), leaf(3)))
def a_detached_input_gets_a_history_and_is_returned(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    cut = x.detach()
    cut.mul_(w)
    return x * 1, cut


@table(lambda: leaf(3, 4))
def a_chain_of_detaches(x: Tensor) -> tuple[Tensor, ...]:
    y = x * 2
    one = y[1:].detach()
    two = one[:, 1].detach()
    two.add_(1)
    y.mul_(2)
    return y * 1, one * 1, two * 1


@table(lambda: grown(3), dynamo=False)
def data_is_assigned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    y.data = x.detach() * 3
    return y * 1, y.sin()


@table(lambda: leaf(3), dynamo=False)
def data_of_a_parameter_is_assigned(x: Tensor) -> Tensor:
    y = torch.zeros(3, dtype=torch.float64)
    y.data = x.data
    return y + 1


@table(lambda: (plain(3, 4), plain(4)))
def slices_assigned_in_a_loop(x: Tensor, w: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    for index in range(3):
        out[index] = x[index] * w + out[index - 1]
    return out


@table(lambda: leaf(4, 4), order=2)
def a_view_is_kept_while_its_base_is_rebound(x: Tensor) -> Tensor:
    y = x * 2
    corner = y[:2, :2]
    y = y + 1
    y.mul_(3)
    corner.add_(y[2:, 2:])
    return corner * y[0, 0]


@table(lambda: leaf(3))
def a_write_in_a_no_grad_region(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        y.mul_(3)
        y[0] = 1
    return y * x


@table(lambda: leaf(3, 3))
def a_view_made_without_grad_is_derived_anew(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    with torch.no_grad():
        row = y[1]
        y.mul_(3)
    return row * 2, y


@table(lambda: leaf(3, 3), dynamo=False)
def a_view_made_without_grad_is_not_derived_anew(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    with torch.no_grad():
        row = y[1]
    y.data.mul_(3)
    return row * 2, y * 1


@table(lambda: leaf(3, 3))
def a_view_made_without_grad_is_returned(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    with torch.no_grad():
        row = y[1]
    return row, y


@table(lambda: leaf(3, 3))
def a_view_made_without_grad_is_returned_after_a_write(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x * 2
    with torch.no_grad():
        row = y[1]
        y.mul_(3)
    return row, y


@table(lambda: leaf(3, 3))
def a_view_of_an_input_made_without_grad_is_returned_after_a_write(x: Tensor) -> Tensor:
    with torch.no_grad():
        row = x[1]
        x.mul_(3)
    return row


@table(lambda: leaf(3, 3), raises=RuntimeError)
def a_view_made_without_grad_is_written(x: Tensor) -> Tensor:
    y = x * 2
    with torch.no_grad():
        row = y[1]
    return row.mul_(2)


@table(lambda: leaf(3, 3), raises=RuntimeError)
def one_of_several_views_is_written(x: Tensor) -> Tensor:
    y = x * 2
    one, _, _ = y.unbind()
    return one.mul_(2)


@table(lambda: (leaf(3), plain(3)))
def a_buffer_takes_a_value_with_history(x: Tensor, buffer: Tensor) -> Tensor:
    buffer.copy_(x * 2)
    return buffer * x


@table(lambda: (leaf(2, 3), plain(4, 3)))
def a_part_of_a_buffer_takes_a_value_with_history(x: Tensor, cache: Tensor) -> Tensor:
    cache[1:3] = x
    return (cache * cache).sum()


@table(lambda: (leaf(3), plain(3)))
def a_buffer_takes_a_value_without_history(x: Tensor, buffer: Tensor) -> Tensor:
    with torch.no_grad():
        buffer.lerp_(x, 0.1)
    return x - buffer


@table(lambda: (leaf(3), plain(3)))
def a_buffer_takes_detached_data(x: Tensor, buffer: Tensor) -> Tensor:
    buffer.mul_(0.9).add_(x.detach(), alpha=0.1)
    return x - buffer


@table(lambda: (plain(3), leaf(3)))
def a_write_gives_an_input_a_history_which_a_view_shares(x: Tensor, w: Tensor) -> Tensor:
    head = x[:1]
    x.mul_(w)
    return head * 2


@table(lambda: plain(4), dynamo=False)
def contiguous_is_the_same_tensor(x: Tensor) -> Tensor:
    x.contiguous().add_(1)
    return x.reshape(2, 2).mul_(2)


@table(lambda: plain(4, 4))
def reshape_copies_a_transpose(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.t().reshape(-1)
    y.add_(1)
    return x, y


@table(lambda: plain(2, 3))
def channels_last_is_kept(x: Tensor) -> tuple[Tensor, Tensor]:
    y = x.t() * 2
    y.view(2, 3) if y.is_contiguous() else y.t().view(-1).mul_(2)
    return y, y[0]


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("row", table, ids=str)
def test_aliasing(row: Row, route: Route) -> None:
    row.check(route)


class Norm(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.BatchNorm1d(3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Any:
        return self.inner(x)


class Counter(torch.nn.Module):
    count: Tensor
    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.tied = self.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.count += 1
        with torch.no_grad():
            self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x * self.weight * self.tied + self.mean, self.count


class Doubled(torch.nn.Module):
    """Writes to its own parameter, as weight averaging does."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.mul_(2)
        return x * self.weight


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.value)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [Norm, Counter, Doubled])
def test_buffers(kind: type[torch.nn.Module], training: bool, route: Route) -> None:
    check(kind().train(training), lambda: leaf(5, 3), route)
