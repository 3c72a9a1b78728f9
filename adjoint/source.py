"""Where in the user's program the running code is."""

from __future__ import annotations

import functools
import linecache
import os
import sys
from pathlib import Path
from types import FrameType, TracebackType

import torch

from adjoint.errors import SourceLine

_LIBRARIES = (
    str(Path(torch.__file__).parent) + os.sep,
    str(Path(__file__).parent) + os.sep,
)
_GENERATED = ("<eval_with_key>", "<frozen", "<string>", "<generated")


@functools.lru_cache(maxsize=4096)
def is_user_file(file: str) -> bool:
    if file.startswith(_GENERATED):
        return False
    if file.startswith(_LIBRARIES):
        return False
    return os.sep + "contextlib.py" not in file and os.sep + "functools.py" not in file


def user_line() -> SourceLine | None:
    """The innermost line on the stack that is neither torch's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_user_file(file):
            text = linecache.getline(file, frame.f_lineno).strip()
            return SourceLine(file, frame.f_lineno, frame.f_code.co_name, text)
        frame = frame.f_back
    return None


def line_of_stack_trace(stack_trace: str | None) -> SourceLine | None:
    """The innermost line of the user's in a stack trace as torch.fx keeps it."""
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
    """The innermost line of the user's that an error passed through."""
    found: SourceLine | None = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_user_file(code.co_filename):
            text = linecache.getline(code.co_filename, traceback.tb_lineno).strip()
            found = SourceLine(code.co_filename, traceback.tb_lineno, code.co_name, text)
        traceback = traceback.tb_next
    return found
