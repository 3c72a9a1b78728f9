import copy

import pytest

from adjoint.errors import CaptureError, SourceLine

LINE = SourceLine("model.py", 12, "forward", "    index = mask.nonzero()\n")


def test_the_message_says_what_why_where_and_the_way_out() -> None:
    error = CaptureError("aten.nonzero", "its size depends on values", "use torch.where", LINE)
    assert str(error).splitlines() == [
        "cannot capture aten.nonzero: its size depends on values",
        "  at model.py:12 in forward: index = mask.nonzero()",
        "  way out: use torch.where",
    ]


def test_without_a_source_line_the_place_is_left_out() -> None:
    error = CaptureError("a generator", "it is not a tensor", "pass a list")
    assert str(error).splitlines() == [
        "cannot capture a generator: it is not a tensor",
        "  way out: pass a list",
    ]


def test_a_line_whose_text_is_unknown_ends_with_the_function() -> None:
    assert str(SourceLine("<string>", 1, "f", "")) == "<string>:1 in f"


def test_a_copied_error_is_the_same_error() -> None:
    error = CaptureError("aten.nonzero", "its size depends on values", "use torch.where", LINE)
    copied = copy.copy(error)
    assert str(copied) == str(error)
    assert copied.source == LINE


def test_callers_who_catch_runtime_errors_see_it() -> None:
    with pytest.raises(RuntimeError, match="cannot capture x"):
        raise CaptureError("x", "y", "z")
