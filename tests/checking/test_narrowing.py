from __future__ import annotations

from collections.abc import Sequence

from adjoint.checking.narrowing import fewest_wrong, guilty_match, guilty_pass

PASSES = ("a", "b", "c")


def test_the_first_pass_that_makes_it_wrong() -> None:
    def is_wrong(skipped: Sequence[str]) -> bool:
        return "b" not in skipped

    assert guilty_pass(PASSES, is_wrong) == ("b", ("c",))


def test_what_is_always_or_never_wrong_has_no_guilty_pass() -> None:
    assert guilty_pass(PASSES, lambda skipped: True) is None
    assert guilty_pass(PASSES, lambda skipped: False) is None


def test_a_pass_without_rules_has_no_match() -> None:
    assert guilty_match("a", lambda: True) is None


def test_the_fewest_with_which_a_result_is_wrong() -> None:
    for count in range(1, 20):
        for first in range(1, count + 1):
            assert fewest_wrong(count, lambda n, first=first: n >= first) == first  # type: ignore[misc]
