"""Everything that documents show runs, links lead somewhere, and generated pages are fresh."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from adjoint.cli import command_line
from adjoint.observing import Event, watching
from tests import apidoc
from tests.documents import ROOT, blocks, command_lines, commands, documents, run

PAGES = {path.relative_to(ROOT).as_posix(): path for path in documents()}
RUNNABLE = [name for name, path in PAGES.items() if blocks(path.read_text(encoding="utf-8"))]

# What a new user tries first is in the default run.
FIRST = ("README.md", "docs/index.md", "docs/tour.md")

# Blocks that are not run, and why.
NOT_RUN: dict[str, list[str]] = {}


@pytest.mark.parametrize(
    "name",
    [n if n in FIRST else pytest.param(n, marks=pytest.mark.slow) for n in RUNNABLE],
)
def test_the_code_of_a_document_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "hugging-face" in name:
        pytest.importorskip("accelerate", reason="`Trainer` of transformers needs it")
    monkeypatch.chdir(tmp_path)
    torch.compiler.reset()
    torch.manual_seed(0)
    events: list[Event] = []
    with watching(events.append):
        assert run(PAGES[name]) > 0
    assert events, "nothing was compiled"


def test_what_is_not_run_is_listed_with_its_reason() -> None:
    found = {
        name: [block.not_run for block in blocks(path.read_text(encoding="utf-8")) if block.not_run]
        for name, path in PAGES.items()
    }
    assert {name: reasons for name, reasons in found.items() if reasons} == NOT_RUN


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    path = PAGES[name]
    text = re.sub(
        r"^```.*?^```$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not target.startswith(("http://", "https://", "#")):
            assert (path.parent / target.partition("#")[0]).exists(), target


@pytest.mark.parametrize("name", PAGES)
def test_commands_are_understood(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    parser = command_line()
    for arguments in command_lines(text):
        assert parser.parse_args(arguments).command == arguments[0]
    (choices,) = (each.choices for each in parser._subparsers._group_actions)  # type: ignore[union-attr]
    assert commands(text) <= set(choices or ())


def test_the_readme_has_commands() -> None:
    text = PAGES["README.md"].read_text(encoding="utf-8")
    assert len(command_lines(text)) > 20
    assert commands(text) >= {"cache", "atlas"}


def test_the_reference_is_fresh_and_has_every_name() -> None:
    assert apidoc.FILE.read_text(encoding="utf-8") == apidoc.written(), (
        "docs/reference.md is stale; write it with: python -m tests.apidoc"
    )


def test_every_page_is_in_the_menu_of_the_site() -> None:
    menu = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [name.removeprefix("docs/") for name in PAGES if name.startswith("docs/")]
    assert [page for page in pages if f": {page}\n" not in menu] == []
