from __future__ import annotations

from adjoint.atlas.plain import digest_of, dumped


def test_digests_are_of_values() -> None:
    assert digest_of({"a": (1, "é")}) == digest_of({"a": [1, "é"]})
    assert digest_of("a", "b") != digest_of("ab")
    assert dumped({"é": (1,)}) == '{"é":[1]}'
