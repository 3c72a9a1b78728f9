from __future__ import annotations

import re

import pytest

from adjoint.atlas import syntax
from adjoint.atlas.facts import HEADINGS
from adjoint.atlas.grammars import CALLS, FAMILY, GRAMMARS, NOTES
from tests.atlas_trees import needs_parsers

MEANINGS = {"import", "use", "call", "construction", "local", "block", "container", "message"}
DEFINED_BY_RULES = {"declaration", "binding", "parameter"}


@pytest.mark.parametrize("language", GRAMMARS)
def test_every_capture_has_a_meaning(language: str) -> None:
    captures = set(re.findall(r"@([a-z]\w*)", GRAMMARS[language].query))
    assert captures <= MEANINGS | DEFINED_BY_RULES | HEADINGS.keys() | NOTES.keys()


@pytest.mark.parametrize("language", GRAMMARS)
def test_every_language_has_calls_to_note(language: str) -> None:
    assert CALLS[FAMILY.get(language, language)]


@needs_parsers
@pytest.mark.parametrize("language", GRAMMARS)
def test_every_query_is_one_of_its_grammar(language: str) -> None:
    _, query = syntax._parser(language)
    assert query.pattern_count > 10


def test_a_missing_parser_is_named() -> None:
    with pytest.raises(syntax.MissingParser, match="no_such_parser"):
        syntax.installed("no_such_parser")
