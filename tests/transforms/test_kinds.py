from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from adjoint.transforms.kinds import Call, Memory, look_at, without_sizes

SHARING, PLACES = Memory.SHARING, Memory.SHARING | Memory.PLACES


def call(*args: Any, held: tuple[Tensor, ...] = (), memory: Memory = Memory.NOTHING) -> Call:
    return look_at(args, {}, held, memory, None)


def test_sizes_make_another_call_but_not_another_kind() -> None:
    one, other = call(torch.ones(3, 4)), call(torch.ones(5, 4))
    assert one.exact != other.exact
    assert without_sizes(one) == without_sizes(other)


def test_layouts_dtypes_ranks_and_numbers_make_another_kind() -> None:
    x = torch.ones(3, 4)
    others = [x.t(), x[:, ::2], x.double(), x[0], x.clone().requires_grad_(), x[:1].expand(3, 4)]
    kinds = [without_sizes(call(each, 1)) for each in (x, *others)]
    kinds += [without_sizes(call(*each)) for each in ((x, 2), (x, 1.0), (x, True), (1, x))]
    assert len(set(kinds)) == len(kinds)


def test_arguments_that_are_one_tensor_or_one_that_is_held() -> None:
    x, y = torch.ones(3), torch.ones(3)
    assert call(x, y).exact == call(y, x).exact
    assert call(x, y).exact != call(x, x).exact
    assert call(x, held=(y,)).exact != call(x, held=(x,)).exact


def test_memory_that_is_shared_counts_where_it_is_written_to() -> None:
    whole, other = torch.ones(6), torch.ones(6)
    shared, separate = (whole[:3], whole[3:]), (whole[:3], other[3:])
    assert call(*shared).exact == call(*separate).exact
    assert call(*shared, memory=SHARING).exact != call(*separate, memory=SHARING).exact


def test_a_place_in_memory_counts_where_the_program_looks_at_it() -> None:
    whole = torch.ones(6)
    one, other, shorter = whole[:2], whole[2:4], torch.ones(2)
    assert len({call(each, memory=SHARING).exact for each in (one, other, shorter)}) == 1
    assert len({call(each, memory=PLACES).exact for each in (one, other, shorter)}) == 3


def test_tensors_inside_of_arguments_are_held() -> None:
    one, other = nn.Linear(2, 1), nn.Linear(2, 1)
    assert [id(each) for each in call(one).held] == [id(one.weight), id(one.bias)]
    assert call(one).exact == call(other).exact
    other.eval()
    assert call(one).exact != call(other).exact
