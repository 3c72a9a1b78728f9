"""Why an entry that exists is not the one that is needed: the facts in which they differ."""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.store.entries import Facts

# A list of CPU features, each with its sign: `+avx2,-avx512f`.
FEATURES = "features"


def differences(wanted: Facts, kept: Facts) -> list[str]:
    """What is otherwise now than when an entry was kept, a phrase for each fact."""
    found: list[str] = []
    for name in sorted({*wanted, *kept}):
        now, then = wanted.get(name), kept.get(name)
        if now == then:
            continue
        if name == FEATURES and now is not None and then is not None:
            found += _features(now, then)
        elif now is None or then is None:
            found.append(f"{name} was {'unknown' if then is None else then}")
        elif "\n" in now + then or len(now) + len(then) > 120:
            found.append(f"{name} differ" if name.endswith("s") else f"{name} differs")
        else:
            found.append(f"{name} is {now}, and was {then}")
    return found


def nearest(wanted: Facts, kept: Sequence[Facts]) -> list[str]:
    """The fewest differences from any of the kept facts; none if there are none kept."""
    return min((differences(wanted, each) for each in kept), key=len, default=[])


def _features(now: str, then: str) -> list[str]:
    has, had = _present(now), _present(then)
    found = [f"the CPU has no {each}" for each in sorted(had - has)]
    found += [f"the CPU has {each}" for each in sorted(has - had)]
    return found or ["the CPU is described otherwise"]


def _present(features: str) -> set[str]:
    return {each[1:] for each in features.split(",") if each.startswith("+")}
