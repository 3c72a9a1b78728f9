"""The pages in a real browser, from the disk and without a network: search as one types, themes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.atlas_trees import PACKAGE, made, planted
from tests.browsers import NEEDS_A_BROWSER, Browser, driven

pytestmark = [
    pytest.mark.slow,
    NEEDS_A_BROWSER,
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    yield from driven()


@pytest.fixture(scope="module")
def atlas(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("atlas")
    made(planted(folder / "in", PACKAGE), folder / "out", "html")
    return folder / "out"


FOUND = "return [...document.querySelectorAll('#found li')].map((e) => e.innerText)"


def test_search_finds_a_symbol_as_it_is_typed(browser: Browser, atlas: Path) -> None:
    browser.open(atlas / "shop" / "index.html")
    browser.type("T")
    browser.wait(f"const f = (() => {{ {FOUND} }})(); return f.length > 1")
    browser.type("ill.a")
    names = browser.wait(f"const f = (() => {{ {FOUND} }})(); return f.length === 1 && f")
    assert "Till.add" in names[0]
    assert "method" in names[0]
    browser.type("\ue007")  # Enter
    address = browser.wait("return location.href.includes('till.py_docs') && location.href")
    assert address.endswith("shop/till.py_docs.html#n-Till.add")
    target = browser.run("return document.querySelector(':target').innerText")
    assert target == "Till.add"


def test_a_name_that_is_nowhere_says_so(browser: Browser, atlas: Path) -> None:
    browser.open(atlas / "index.html")
    browser.type("no such name")
    browser.wait("return document.querySelector('#found').innerText === 'No name contains this.'")


def test_light_and_dark(browser: Browser, atlas: Path) -> None:
    browser.open(atlas / "map.html")
    background = "return getComputedStyle(document.body).backgroundColor"
    before = browser.run(background)
    browser.run("document.querySelector('#theme').click()")
    assert browser.run(background) != before
