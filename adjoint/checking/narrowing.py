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


def fewest_wrong(count: int, is_wrong: Callable[[int], bool]) -> int:
    """The fewest of `count` things with which a result is wrong, found by bisection.

    It is right with none of them, and wrong with all.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_wrong(middle) else (middle, high)
    return high


def guilty_match(name: str, is_wrong: Callable[[], bool]) -> tuple[int, str] | None:
    """The number and the text of the match of a pass that makes a result wrong.

    None: the pass is not made of rules.
    """
    with limited(name, None) as limit:
        is_wrong()
    if not limit.count:
        return None

    def is_wrong_with(count: int) -> bool:
        with limited(name, count):
            return is_wrong()

    number = fewest_wrong(limit.count, is_wrong_with)
    with limited(name, number) as limit:
        is_wrong()
        return number, limit.last
