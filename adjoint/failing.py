"""Marks on functions by which `graph/boundary.py` reads the traceback of a failure.

A mark says which op a function works on, or that it calls user code.  Functions are marked once,
when they are defined, so that marks cost nothing while nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import TypeVar

Function = TypeVar("Function", bound=Callable[..., object])
T = TypeVar("T")

# By code object: the variable of the function that holds the op it works on, or a node of it.
_VARIABLES: dict[CodeType, str] = {}


def works_on(variable: str) -> Callable[[Function], Function]:
    """Mark the decorated function as working on the op in `variable`, an argument or a local."""

    def marked(function: Function) -> Function:
        _VARIABLES[function.__code__] = variable
        return function

    return marked


def variable_of(code: CodeType) -> str | None:
    """The variable that a marked function keeps its op in."""
    return _VARIABLES.get(code)


def call_user_code(function: Callable[..., T], /, *args: object, **kwargs: object) -> T:
    """Call a function of the user's program: what it raises is the program's own error."""
    return function(*args, **kwargs)


def is_user_call(code: CodeType) -> bool:
    """Whether a frame with this code object calls into the user's program."""
    return code is call_user_code.__code__
