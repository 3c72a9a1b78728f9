"""Chromium, driven by the WebDriver protocol, which needs no package but `chromium-driver`."""

from __future__ import annotations

import base64
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

NEEDS_A_BROWSER = pytest.mark.skipif(
    shutil.which("chromedriver") is None, reason="needs chromium and chromium-driver"
)
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

    def press(self, key: str) -> None:
        """Press and release a key, wherever the focus is."""
        keys = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self._ask("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": keys}]})

    def resize(self, width: int, height: int) -> None:
        self._ask("/window/rect", {"width": width, "height": height})

    def picture(self, file: Path) -> None:
        """Write a screenshot."""
        file.write_bytes(base64.b64decode(self._ask("/screenshot", method="GET")))

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


def driven() -> Iterator[Browser]:
    """A session, for as long as a fixture is used."""
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
