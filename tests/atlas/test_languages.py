from __future__ import annotations

import pytest

from adjoint.atlas.languages import is_test, language_of


@pytest.mark.parametrize(
    ("path", "language"),
    [("a/b.py", "Python"), ("a.H", "C"), ("a.cu", "CUDA"), ("Makefile", "text"), ("x.tsx", "TSX")],
)
def test_the_name_of_a_file_says_its_language(path: str, language: str) -> None:
    assert language_of(path) == language


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tests/a.py", True),
        ("a/test_b.py", True),
        ("a/b_test.go", True),
        ("a/b.spec.ts", True),
        ("a/contest.py", False),
        ("attest/b.py", False),
    ],
)
def test_tests_are_known_by_their_names(path: str, expected: bool) -> None:
    assert is_test(path) == expected
