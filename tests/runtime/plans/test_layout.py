from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adjoint.runtime.plans.layout import ALIGNMENT_BYTES, Lifetime, assign_offsets, bytes_of_layout

INTERVALS = st.lists(
    st.builds(
        lambda first, length, size: Lifetime(first, first + length, size),
        st.integers(0, 12),
        st.integers(0, 6),
        st.integers(0, 1000),
    ),
    max_size=25,
)


@given(INTERVALS)
def test_what_lives_at_the_same_time_lies_apart(lifetimes: list[Lifetime]) -> None:
    places, total = assign_offsets(dict(enumerate(lifetimes)))
    for i, one in enumerate(lifetimes):
        assert places[i] % ALIGNMENT_BYTES == 0
        assert 0 <= places[i] <= places[i] + one.size <= total
        for j, other in enumerate(lifetimes[:i]):
            if one.first <= other.last and other.first <= one.last:
                apart = places[i] + one.size <= places[j] or places[j] + other.size <= places[i]
                assert apart, (one, other)


def test_memory_is_used_again() -> None:
    chain = {step: Lifetime(step, step + 1, 640) for step in range(10)}
    assert assign_offsets(chain)[1] == 2 * 640


def test_what_fits_a_gap_goes_there() -> None:
    lifetimes = {
        "gap": Lifetime(0, 2, 128),
        "after": Lifetime(1, 9, 64),
        "small": Lifetime(3, 5, 100),
    }
    places, total = assign_offsets(lifetimes)
    assert places == {"gap": 0, "after": 128, "small": 0}
    assert total == 192


def test_small_ones_do_not_stand_in_the_way() -> None:
    """What begins first would lie where the large ones are to follow one another."""
    lifetimes = {
        "early": Lifetime(0, 1, 1280),
        "small": Lifetime(1, 3, 64),
        "late": Lifetime(2, 3, 1344),
    }
    assert assign_offsets(lifetimes)[1] == 1344 + 64


def test_nothing_needs_no_memory() -> None:
    assert assign_offsets({}) == ({}, 0)


def test_the_bytes_of_a_layout() -> None:
    spans = [(0, 1, 100), (1, 2, 50), (2, 3, 100)]
    assert bytes_of_layout(spans) == 128 + 64
    assert bytes_of_layout([]) == 0
