from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adjoint.runtime.cpu.memory import ALIGNMENT, Interval, arrange

INTERVALS = st.lists(
    st.builds(
        lambda first, length, size: Interval(first, first + length, size),
        st.integers(0, 12),
        st.integers(0, 6),
        st.integers(0, 1000),
    ),
    max_size=25,
)


@given(INTERVALS)
def test_what_lives_at_the_same_time_lies_apart(intervals: list[Interval]) -> None:
    places, total = arrange(dict(enumerate(intervals)))
    for i, one in enumerate(intervals):
        assert places[i] % ALIGNMENT == 0
        assert 0 <= places[i] <= places[i] + one.size <= total
        for j, other in enumerate(intervals[:i]):
            if one.first <= other.last and other.first <= one.last:
                apart = places[i] + one.size <= places[j] or places[j] + other.size <= places[i]
                assert apart, (one, other)


def test_memory_is_used_again() -> None:
    chain = {step: Interval(step, step + 1, 640) for step in range(10)}
    assert arrange(chain)[1] == 2 * 640


def test_what_fits_a_gap_goes_there() -> None:
    intervals = {
        "gap": Interval(0, 2, 128),
        "after": Interval(1, 9, 64),
        "small": Interval(3, 5, 100),
    }
    places, total = arrange(intervals)
    assert places == {"gap": 0, "after": 128, "small": 0}
    assert total == 192


def test_nothing_needs_no_memory() -> None:
    assert arrange({}) == ({}, 0)
