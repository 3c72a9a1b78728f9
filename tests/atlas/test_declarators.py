from __future__ import annotations

import pytest

from tests.atlas_trees import kinds, needs_parsers


@needs_parsers
@pytest.mark.parametrize(
    ("text", "name", "kind"),
    [
        ("char **names(void) { return 0; }", "names", "function"),
        ("int (*table[3])(int);", "table", "variable"),
        ("int (*made(void))(int);", "made", "function"),
        ("typedef void (*callback)(int);", "callback", "type"),
        ("const char *const words[] = {0};", "words", "constant"),
        ("template <> int A<int>::get<3>() { return 0; }", "A::get", "function"),
        ("A::A(int x) : b(x) {}", "A::A", "function"),
        ("bool operator==(A x, A y) { return 1; }", "operator==", "function"),
    ],
)
def test_the_name_inside_a_declarator(text: str, name: str, kind: str) -> None:
    assert kinds(text + "\n", "C++").get(name) == (kind, 1)
