"""Finding the pass, and the match in it, that makes a result wrong, by running with fewer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from adjoint.rewrite.engine import limited


def guilty_pass(
    names: Sequence[str], is_wrong: Callable[[Sequence[str]], bool]
) -> tuple[str, tuple[str, ...]] | None:
    """The first pass without which a result is right, and those that are skipped with it.

    `names`: the passes in the order of their runs.  `is_wrong`: whether the result is wrong if
    these are skipped.  None: it is wrong without any pass, or right with all.
    """
    if not is_wrong(()) or is_wrong(names):
        return None
    for place, name in enumerate(names):
        skipped = tuple(names[place + 1 :])
        if is_wrong(skipped):
            return name, skipped
    return None


def guilty_match(name: str, is_wrong: Callable[[], bool]) -> tuple[int, str] | None:
    """The number and the text of the match of a pass that makes a result wrong.

    None: the pass is not made of rules.
    """
    with limited(name, None) as limit:
        is_wrong()
    low, high = 0, limit.count
    if not high:
        return None
    # With `low` matches the result is right, with `high` it is wrong.
    while high - low > 1:
        middle = (low + high) // 2
        with limited(name, middle):
            low, high = (low, middle) if is_wrong() else (middle, high)
    with limited(name, high) as limit:
        is_wrong()
        return high, limit.last
