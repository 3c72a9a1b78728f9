"""What a failure is read by: whose code it came from, and which op was being worked on.

Nothing is kept while nothing fails.  Functions are marked once, when they are defined, and the
traceback of a failure says which of them were running (`graph/boundary.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

Work = TypeVar("Work", bound=Callable[..., Any])
Result = TypeVar("Result")

# By code: the variable that holds the node, the op, or what has one, that the function works on.
_VARIABLES: dict[CodeType, str] = {}


def works_on(variable: str) -> Callable[[Work], Work]:
    """The decorated function works on the op in `variable`, an argument or a local."""

    def marked(function: Work) -> Work:
        _VARIABLES[function.__code__] = variable
        return function

    return marked


def variable_of(code: CodeType) -> str | None:
    """The variable of a function that says what it works on."""
    return _VARIABLES.get(code)


def call_user_code(function: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Result:
    """Call what belongs to the user's program: what it raises is the program's own error."""
    return function(*args, **kwargs)


def is_user_call(code: CodeType) -> bool:
    """From here on, the program runs."""
    return code is call_user_code.__code__
