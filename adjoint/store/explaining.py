"""Why there was a cache miss: the facts in which existing entries differ from the one needed."""

from __future__ import annotations

from collections.abc import Sequence

from adjoint.store.entries import Facts

# A list of CPU features, each with its sign: `+avx2,-avx512f`.
FEATURES = "features"


def differences(wanted: Facts, kept: Facts) -> list[str]:
    """The facts that have changed since an entry was written, a phrase for each."""
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
    """The differences from the most similar entry; none if there is no entry."""
    return min((differences(wanted, each) for each in kept), key=len, default=[])


def _features(now: str, then: str) -> list[str]:
    has, had = _present(now), _present(then)
    found = [f"the CPU has no {each}" for each in sorted(had - has)]
    found += [f"the CPU has {each}" for each in sorted(has - had)]
    return found or ["the CPU is described otherwise"]


def _present(features: str) -> set[str]:
    return {each[1:] for each in features.split(",") if each.startswith("+")}
