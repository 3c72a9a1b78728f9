"""The pages in a real browser, from the disk and without a network: search as one types, themes.

Chromium is driven by the WebDriver protocol, which needs no package but `chromium-driver`.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.atlas_trees import PACKAGE, made, planted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("chromedriver") is None, reason="needs chromium and chromium-driver"
    ),
]
ARGUMENTS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--host-resolver-rules=MAP * ~NOTFOUND",  # There is no network.
]
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # The key of an element, by the protocol.


class Browser:
    """A session of Chromium."""

    def __init__(self, port: int) -> None:
        self.address = f"http://127.0.0.1:{port}/session"
        options = {"goog:chromeOptions": {"args": ARGUMENTS}}
        made = self._ask("", {"capabilities": {"alwaysMatch": options}})
        self.address += f"/{made['sessionId']}"

    def _ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.address + path, content, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.load(answer)["value"]

    def open(self, file: Path, place: str = "") -> None:
        self._ask("/url", {"url": file.as_uri() + place})

    def run(self, script: str) -> Any:
        return self._ask("/execute/sync", {"script": script, "args": []})

    def type(self, text: str) -> None:
        found = self._ask("/element", {"using": "css selector", "value": "#search"})
        self._ask(f"/element/{found[ELEMENT]}/value", {"text": text})

    def wait(self, script: str) -> Any:
        """The first result of a script that is true."""
        until = time.monotonic() + 20
        while time.monotonic() < until:
            result = self.run(script)
            if result:
                return result
            time.sleep(0.1)
        raise AssertionError(f"never true: {script}")

    def close(self) -> None:
        self._ask("", method="DELETE")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    driver = subprocess.Popen(["chromedriver", f"--port={port}"], stdout=subprocess.DEVNULL)
    session = None
    try:
        for _ in range(100):
            try:
                session = Browser(port)
                break
            except OSError:
                time.sleep(0.1)
        assert session is not None
        yield session
    finally:
        if session is not None:
            session.close()
        driver.terminate()
        driver.wait()


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
