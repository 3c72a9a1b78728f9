from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

import adjoint
from adjoint.errors import SourceLine
from adjoint.source import (
    is_user_file,
    line_of_stack_trace,
    line_of_traceback,
    user_line,
    users_traceback,
)

HERE = __file__
TORCH = str(Path(torch.__file__).parent / "functional.py")


def test_the_innermost_line_of_the_user() -> None:
    line = user_line()
    assert line is not None
    assert (line.file, line.function) == (HERE, "test_the_innermost_line_of_the_user")
    assert line.text == "line = user_line()"


def test_lines_of_torch_and_of_python_are_passed_over() -> None:
    found: list[SourceLine | None] = []

    class Asks(torch.nn.Module):
        def forward(self) -> None:
            found.append(functools.partial(user_line)())

    Asks()()
    assert found[0] is not None
    assert found[0].function == "forward"


TRACE = f"""  File "{HERE}", line 3, in outer
    y = inner(x)
  File "user.py", line 7, in inner
    return torch.sin(x)
  File "{TORCH}", line 10, in sin
    return call(x)
  File "<eval_with_key>.1", line 4, in forward
    add = x + 1
"""


def test_a_trace_as_fx_keeps_it() -> None:
    assert line_of_stack_trace(TRACE) == SourceLine("user.py", 7, "inner", "return torch.sin(x)")


@pytest.mark.parametrize(
    "trace", [None, "", "no frames here", f'File "{TORCH}", line 1, in f\n  x']
)
def test_a_trace_without_the_user(trace: str | None) -> None:
    assert line_of_stack_trace(trace) is None


def test_a_trace_that_ends_with_its_place() -> None:
    line = line_of_stack_trace('File "user.py", line 7, in inner')
    assert line == SourceLine("user.py", 7, "inner", "")


def fails() -> None:
    torch.ones(3) @ torch.ones(4)


def test_an_error_passed_through_a_line() -> None:
    with pytest.raises(RuntimeError) as raised:
        fails()
    line = line_of_traceback(raised.tb)
    assert line is not None
    assert (line.function, line.text) == ("fails", "torch.ones(3) @ torch.ones(4)")
    assert line_of_traceback(None) is None


def test_generated_programs_are_not_the_users() -> None:
    assert is_user_file(HERE)
    assert not is_user_file("<adjoint program of 3 steps>")
    assert not is_user_file(TORCH)


def test_the_traceback_of_the_users_code() -> None:
    """Without frames of ours and torch's; empty where the innermost frame is ours."""

    def own(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 2)

    with pytest.raises(Exception, match="invalid for input of size 3") as raised:
        adjoint.capture(own, torch.ones(3))
    cause = raised.value.__cause__ or raised.value
    said = users_traceback(cause)
    assert "in own\n    return x.reshape(2, 2)" in said
    assert "adjoint/" not in said.replace(__file__, "")
    with pytest.raises(ValueError, match="not legal") as raised:
        adjoint.Options(target="gpu")  # type: ignore[arg-type]
    assert users_traceback(raised.value) == ""
