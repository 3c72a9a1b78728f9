from __future__ import annotations

from tests.atlas_trees import facts, kinds, needs_parsers


@needs_parsers
def test_keys_of_toml_and_yaml_are_options() -> None:
    assert kinds("a = 1\n[b.c]\nd = 2\n[[e]]\nf = 1\n", "TOML") == {
        "a": ("option", 1),
        "b.c": ("option", 2),
        "b.c.d": ("option", 3),
    }
    # What is in a sequence is data.
    assert kinds("# Settings.\na:\n  b: 1\nc:\n  - d: 2\n", "YAML") == {
        "a": ("option", 2),
        "a.b": ("option", 3),
        "c": ("option", 4),
    }
    assert facts("# Settings.\na: 1\n", "YAML").purpose == "Settings."


@needs_parsers
def test_markdown_has_headings_and_what_it_marks_as_code() -> None:
    text = (
        "# Title\n\nIt is `here`. And\n`a/b.py` is é `there`. Last.\n\n"
        "## Next `x`\n\n```\n# no heading, `no code`\n```\n\n"
        "| name | job |\n|---|---|\n| `c` | `d` |\n"
    )
    found = facts(text, "Markdown")
    assert [tuple(each) for each in found.headings] == [("Title", 1, 1), ("Next `x`", 2, 6)]
    assert found.purpose.startswith("It is `here`.")
    mentions = {each.name: each for each in found.mentions}
    assert mentions["here"].sentence == "It is `here`."
    assert mentions["a/b.py"].sentence == "And `a/b.py` is é `there`."
    assert (mentions["there"].line, mentions["c"].line) == (4, 14)
    assert mentions["c"].leads
    assert not mentions["d"].leads
    assert "no code" not in mentions


def test_other_text_has_headings() -> None:
    found = facts("Title\n=====\n\ntext\n\nPart\n----\n", "reStructuredText")
    assert [tuple(each) for each in found.headings] == [("Title", 1, 1), ("Part", 2, 6)]
