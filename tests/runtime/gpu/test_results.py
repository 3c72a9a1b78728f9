from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.runtime.gpu.results import (
    Constant,
    FromInput,
    FromNew,
    ResultAllocator,
    Uncapturable,
    layout_of_results,
)

CPU = torch.device("cpu")


def memory(shape: Any, strides: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=dtype)


def layout_of(outputs: Any, inputs: list[Any], allocator: ResultAllocator | None = None) -> Any:
    return layout_of_results(outputs, inputs, allocator or ResultAllocator(memory), CPU)


def test_what_each_result_is() -> None:
    x, made = torch.rand(3, 4), torch.rand(5)
    layout, tensors = layout_of([x, x.t(), made, made[2:], 7, None], [1, x])
    kinds = [type(result) for result in layout.results]
    assert kinds == [FromInput, FromInput, FromNew, FromNew, Constant, Constant]
    assert len(tensors) == 1
    assert tensors[0] is made
    other, memory_of_other = torch.rand(3, 4), torch.rand(5)
    again = layout.results_from([1, other], {0: memory_of_other})
    assert again[0] is other
    assert again[2] is memory_of_other
    torch.testing.assert_close(again[1], other.t())
    torch.testing.assert_close(again[3], memory_of_other[2:])
    assert again[4:] == [7, None]


def test_memory_that_was_asked_for_is_known_by_its_slot_and_its_own_shape() -> None:
    allocator = ResultAllocator(memory)
    given = allocator(3, (4, 6), (6, 1), torch.float32)
    layout, _ = layout_of([torch.ops.aten._unsafe_view(given, [2, 12])], [], allocator)
    (made,) = layout.made
    assert (made.slot, made.shape, made.strides) == (3, (4, 6), (6, 1))


def test_what_has_one_view_that_is_all_of_it_is_laid_out_as_that() -> None:
    layout, _ = layout_of([torch.rand(4, 6).view(2, 12)], [])
    (shown,) = layout.shown
    assert (shown.shape, shown.strides) == ((2, 12), (12, 1))
    other = memory(shown.shape, shown.strides, shown.dtype)
    assert layout.results_from([], {0: other})[0] is other
    for_program = layout.for_program(0, other)
    assert (for_program.shape, for_program.data_ptr()) == ((4, 6), other.data_ptr())


@pytest.mark.parametrize(
    "views",
    [
        lambda made: [made.t(), made],
        lambda made: [made[1:]],
        lambda made: [made[:, 1:]],
        lambda made: [made.expand(2, 4, 6), made.t()],
        lambda made: [made.expand(2, 4, 6)],
        lambda made: [made.as_strided((12, 2), (0, 23))],
        lambda made: [made.view(-1).unfold(0, 3, 1)],
    ],
)
def test_other_views_are_made_of_what_is_made(views: Any) -> None:
    made, other = torch.rand(4, 6), torch.rand(4, 6)
    layout, _ = layout_of(views(made), [])
    assert layout.shown == list(layout.made)
    assert layout.for_program(0, other) is other
    for one, expected in zip(layout.results_from([], {0: other}), views(other), strict=True):
        assert torch.equal(one, expected)
        assert one.stride() == expected.stride()


def test_what_is_ready_is_given_once() -> None:
    ready = torch.empty(2)
    allocator = ResultAllocator(memory, {5: ready})
    assert allocator(5, (2,), (1,), torch.float32) is ready
    assert allocator(5, (2,), (1,), torch.float32) is not ready


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (torch.rand(3).to_sparse(), "a result is torch.sparse_coo on cpu"),
        (torch.complex(torch.rand(3), torch.rand(3)).conj(), "or lazily conjugated"),
        (
            torch.empty_strided((3, 4), (0, 1)),
            "a result lies in memory of which no other result is all",
        ),
        (torch.empty(3, device="meta"), "on meta"),
    ],
)
def test_what_cannot_be_handed_out_again(result: torch.Tensor, why: str) -> None:
    with pytest.raises(Uncapturable, match=why):
        layout_of([result], [])


def test_results_that_share_memory_and_are_no_views_of_one_another_are_apart() -> None:
    storage = torch.rand(8).untyped_storage()
    left, right = (torch.empty(0).set_(storage, offset, (4,), (1,)) for offset in (0, 4))
    layout, tensors = layout_of([left, right], [])
    assert len(tensors) == 2
    again = layout.results_from([], {0: torch.zeros(4), 1: torch.ones(4)})
    assert [each.tolist() for each in again] == [[0] * 4, [1] * 4]
