"""What is told on a terminal, and that nothing is told elsewhere."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from adjoint import progress
from adjoint.errors import SourceLine
from adjoint.observing import Sighting
from adjoint.progress import Progress

LINE = SourceLine("/home/user/model.py", 12, "forward", "y = x.sin()")
WIPED = "\r\x1b[K"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def at() -> SourceLine:
    return LINE


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MIN_REPORTED_SECONDS", 0.01)
    monkeypatch.setattr(progress, "REFRESH_SECONDS", 0.01)


def until(terminal: Terminal, text: str) -> None:
    """Wait for `text` to be told."""
    for _ in range(1000):
        if text in terminal.getvalue():
            return
        time.sleep(0.01)
    raise AssertionError(f"{text!r} is not in {terminal.getvalue()!r}")


def test_what_is_compiled_how_far_and_how_long() -> None:
    terminal = Terminal()
    told_by = Progress(lambda: terminal)
    with told_by.during("lowering", at):
        until(terminal, "adjoint: compiling for 0 s: forward (model.py:12), lowering" + WIPED)
        told_by(Sighting("lower", 0, mock.Mock(launches=[1, 2, 3]), 0.0))
        until(terminal, "compiling kernels, 0 of 3")
        told_by(Sighting("emit", 0, [1, 2], 0.0))
        until(terminal, "compiling kernels, 2 of 3")
    assert terminal.getvalue().endswith(WIPED)
    assert not terminal.getvalue().endswith(WIPED + WIPED)


def test_what_is_fast_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MIN_REPORTED_SECONDS", 1000)
    terminal = Terminal()
    with Progress(lambda: terminal).during("lowering", at):
        time.sleep(0.05)
    assert terminal.getvalue() == ""


def test_what_is_no_terminal_is_told_nothing() -> None:
    stream, before = io.StringIO(), threading.active_count()
    with Progress(lambda: stream).during("lowering", at):
        assert threading.active_count() == before
        time.sleep(0.1)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("stream", [None, object()])
def test_there_may_be_no_stream(stream: Any) -> None:
    with Progress(lambda: stream).during("lowering", at):
        pass


def test_compilations_that_follow_closely_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    told_by = Progress(lambda: terminal)

    def began() -> float:
        with told_by.during("lowering", at):
            return told_by._work.began

    monkeypatch.setattr(progress, "MAX_PAUSE_SECONDS", 1000)
    first = began()
    assert began() == first
    monkeypatch.setattr(progress, "MAX_PAUSE_SECONDS", 0)
    assert began() > first


def test_the_innermost_is_told() -> None:
    terminal = Terminal()
    told_by = Progress(lambda: terminal)
    with told_by.during("tracing", at):
        with told_by.during("lowering", lambda: None):
            until(terminal, "forward (model.py:12), lowering")
        until(terminal, "forward (model.py:12), tracing")


def test_the_line_goes_when_it_fails() -> None:
    terminal = Terminal()
    told_by = Progress(lambda: terminal)

    def fails_late() -> None:
        until(terminal, "lowering")
        raise KeyError

    with pytest.raises(KeyError), told_by.during("lowering", at):
        fails_late()
    assert terminal.getvalue().endswith(WIPED)
    assert not told_by._doing


def test_a_terminal_that_goes_away() -> None:
    terminal = Terminal()
    with Progress(lambda: terminal).during("lowering", at):
        until(terminal, "lowering")
        terminal.close()
        time.sleep(0.05)


SLOWLY = """
import sys, time, torch, adjoint
from adjoint import backend, kernels, progress

progress.MIN_REPORTED_SECONDS, progress.REFRESH_SECONDS = 0.2, 0.01

def slowly(module, name):
    function = getattr(module, name)
    def slow(*args):
        time.sleep(0.5)
        return function(*args)
    setattr(module, name, slow)

slowly(backend, "compile_graph")
slowly(kernels, "load")

def model(x):
    return x.sin() * 2

x = torch.ones(3)
compiled = torch.compile(model, backend="adjoint", options={"progress": sys.argv[1] == "on"})
torch.testing.assert_close(compiled(x), model(x))
"""


@pytest.mark.parametrize("setting", ["on", "off"])
def test_on_a_terminal(setting: str, tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(SLOWLY)
    ours, theirs = pty.openpty()
    process = subprocess.Popen([sys.executable, str(program), setting], stderr=theirs)
    os.close(theirs)
    text = b""
    while True:
        try:
            read = os.read(ours, 4096)
        except OSError:  # The other end is closed.
            break
        if not read:
            break
        text += read
    os.close(ours)
    assert process.wait() == 0, text
    said = text.decode()
    if setting == "off":
        assert said == ""
        return
    assert re.search(r"adjoint: compiling for \d s: model \(slow.py:17\), tracing", said)
    assert re.search(r"for \d s: model \(slow.py:18\), compiling kernels, 0 of 1", said)
    assert said.endswith(WIPED)
    assert re.sub(r"\r\x1b\[Kadjoint: [^\r]*", "", said).replace(WIPED, "") == ""


def test_not_in_a_pipe() -> None:
    command = [sys.executable, "-c", SLOWLY, "on"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
