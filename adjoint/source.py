"""Finding the line of the user's program: on the stack, in a traceback, in torch.fx metadata."""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
import traceback as tracebacks
from pathlib import Path
from types import CodeType, FrameType, TracebackType

import torch

from adjoint.errors import SourceLine

_LIBRARIES = (
    str(Path(torch.__file__).parent) + os.sep,
    str(Path(__file__).parent) + os.sep,
)
_STANDARD_LIBRARY = sysconfig.get_paths()["stdlib"] + os.sep
_GENERATED = ("<eval_with_key>", "<frozen", "<string>", "<generated", "<adjoint ")


@functools.lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    """Whether a file is neither torch's, nor ours, nor generated code."""
    if file.startswith(_GENERATED):
        return False
    if file.startswith(_LIBRARIES):
        return False
    return os.sep + "contextlib.py" not in file and os.sep + "functools.py" not in file


def is_standard_file(file: str) -> bool:
    """Whether a file is of Python's standard library, installed packages left out."""
    return file.startswith(_STANDARD_LIBRARY) and "site-packages" not in file


def line_of_code(code: CodeType, number: int) -> SourceLine:
    """Line `number` of the file that `code` was compiled from."""
    text = linecache.getline(code.co_filename, number).strip()
    return SourceLine(code.co_filename, number, code.co_name, text)


def line_of_function(function: object) -> SourceLine | None:
    """The line where a function is defined; None for one that is not written in Python."""
    code = getattr(function, "__code__", None)
    return line_of_code(code, code.co_firstlineno) if isinstance(code, CodeType) else None


def user_line() -> SourceLine | None:
    """The innermost user line on the stack."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_user_file(frame.f_code.co_filename):
            return line_of_code(frame.f_code, frame.f_lineno)
        frame = frame.f_back
    return None


def line_of_stack_trace(stack_trace: str | None) -> SourceLine | None:
    """The innermost user line in a stack trace as torch.fx keeps it."""
    if not stack_trace:
        return None
    found: SourceLine | None = None
    lines = stack_trace.splitlines()
    for position, entry in enumerate(lines):
        entry = entry.strip()
        if not entry.startswith('File "'):
            continue
        file, _, rest = entry[len('File "') :].partition('", line ')
        number, _, function = rest.partition(", in ")
        text = lines[position + 1].strip() if position + 1 < len(lines) else ""
        if is_user_file(file) and number.isdigit():
            found = SourceLine(file, int(number), function, text)
    return found


def line_of_traceback(traceback: TracebackType | None) -> SourceLine | None:
    """The innermost user line that an exception passed through."""
    found: SourceLine | None = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_file(code.co_filename):
            found = line_of_code(code, traceback.tb_lineno)
        traceback = traceback.tb_next
    return found


def users_traceback(error: BaseException) -> str:
    """What the user's code raised, and where, without the frames of ours, torch's and Python's.

    Empty if no frame is the user's, or if the innermost one is ours.
    """
    passed = tracebacks.extract_tb(error.__traceback__)
    if passed and passed[-1].filename.startswith(_LIBRARIES[1]):
        return ""
    frames = [
        frame
        for frame in passed
        if is_user_file(frame.filename) and not is_standard_file(frame.filename)
    ]
    # A syntax error has no frame of the user's file; its message has the place.
    if not frames and not isinstance(error, SyntaxError):
        return ""
    said = tracebacks.format_exception_only(type(error), error)
    return "".join([*tracebacks.format_list(frames), *said]).rstrip()
