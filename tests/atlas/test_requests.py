from __future__ import annotations

import pytest

from tests.atlas_trees import facts, needs_parsers

pytestmark = needs_parsers


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("C", '#include "a/b.h"', {('"a/b.h"', "*", "")}),
        ("C++", "#include <vector>", {("<vector>", "*", "")}),
        ("Go", 'package p\nimport q "a/b"', {("a/b", "", "q")}),
        ("Go", 'package p\nimport "a/b"', {("a/b", "", "b")}),
        (
            "JavaScript",
            "import d, {a as b} from './x'; import * as y from 'z'; import './w';",
            {("./x", "default", "d"), ("./x", "a", "b"), ("z", "", "y"), ("./w", "", "")},
        ),
        (
            "JavaScript",
            "const {a} = require('./x'), b = require('y');",
            {("./x", "a", "a"), ("y", "", "b")},
        ),
        (
            "TypeScript",
            "export * from './x'; export {a} from './y';",
            {("./x", "*", ""), ("./y", "a", "a")},
        ),
        (
            "Rust",
            "use std::collections::{HashMap, hash_map::{self, Entry as E}}; use crate::a::*;",
            {
                ("std::collections", "HashMap", "HashMap"),
                ("std::collections::hash_map", "", "hash_map"),
                ("std::collections::hash_map", "Entry", "E"),
                ("crate::a", "*", ""),
            },
        ),
    ],
)
def test_imports(language: str, text: str, expected: set[tuple[str, str, str]]) -> None:
    assert {tuple(each)[:3] for each in facts(text + "\n", language).imports} == expected
