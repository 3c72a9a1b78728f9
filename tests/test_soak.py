"""The soak, for a minute: every result is eager's."""

from __future__ import annotations

import pytest

from tests.soak import soak


@pytest.mark.slow
def test_a_minute_of_random_programs_sizes_threads_and_deletions() -> None:
    tally, _ = soak(seconds=60, backend="adjoint", threads=2, seed=1, sample=30)
    assert tally.calls > 10
    assert not tally.wrong, "\n".join(tally.wrong)
