"""Why a function is compiled again, in words: the guards of Dynamo, phrased for a reader."""

from __future__ import annotations

import re
from collections.abc import Callable

# The parts of a guard that follow its code: the user's line, and where Dynamo made the guard.
_COMMENT = re.compile(r"\s+#\s.*$", re.DOTALL)

# Before a guard: the numbers of the frame and of the compilation that it guards.
_NUMBERS = re.compile(r"^\d+/\d+: ")

_LOCAL = re.compile(r"\bL\['(\w+)'\]")
_GLOBAL = re.compile(r"\bG\['(\w+)'\]")


def phrased(guard: str, becomes_symbol: bool = False) -> str:
    """One line about a guard that failed, such as "argument x: size 7 in dimension 0, was 5".

    `becomes_symbol`: a size that changed is symbolic in what is compiled now.
    """
    text = _NUMBERS.sub("", guard.strip())
    for pattern, phrase in _PHRASES:
        found = pattern.match(text)
        if found is not None:
            said = phrase(found)
            is_size = pattern is _SIZE or pattern is _STRIDE
            return f"{said}; marked dynamic now" if is_size and becomes_symbol else said
    return _named(_COMMENT.sub("", text).replace("\n", " "))


def _named(source: str) -> str:
    """Names as the user wrote them: `x` for `L['x']`."""
    return _GLOBAL.sub(r"\1", _LOCAL.sub(r"\1", source))


def _said(template: str) -> Callable[[re.Match[str]], str]:
    return lambda found: template.format(*[_named(each) for each in found.groups()])


_TENSOR = r"[Tt]ensor '([^\n]*?)' "
_SIZE = re.compile(_TENSOR + r"size mismatch at index (\d+)\. expected (\S+), actual (\S+)")
_STRIDE = re.compile(_TENSOR + r"stride mismatch at index (\d+)\. expected (\S+), actual (\S+)")

_PHRASES: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
    (_SIZE, _said("argument {0}: size {3} in dimension {1}, was {2}")),
    (_STRIDE, _said("argument {0}: stride {3} in dimension {1}, was {2}")),
    (
        re.compile(_TENSOR + r"dtype mismatch\. expected (\S+), actual (\S+)"),
        _said("argument {0}: dtype {2}, was {1}"),
    ),
    (
        re.compile(_TENSOR + r"requires_grad mismatch\. expected requires_grad=(\d)"),
        lambda found: (
            f"argument {_named(found[1])}: requires_grad={found[2] == '0'}, was {found[2] == '1'}"
        ),
    ),
    (
        re.compile(_TENSOR + r"rank mismatch\. expected (\d+), actual (\d+)"),
        _said("argument {0}: {2} dimensions, was {1}"),
    ),
    (
        re.compile(_TENSOR + r"dispatch key set mismatch\. expected [^,]*?(.*)", re.DOTALL),
        _said("argument {0}: another device or mode"),
    ),
    (re.compile(r"len\((.+?)\) == (\d+)"), _said("{0} has another length than {1}")),
    (re.compile(r"(\S+) == ([^#\n]+?)\s*(?:#|$)"), _said("{0} is no longer {1}")),
    (
        re.compile(r"___check_(?:type|obj)_id\((.+?), \d+\)[^#]*"),
        _said("{0} is another object, or of another type"),
    ),
    (
        re.compile(r".*GLOBAL_STATE changed: (.*)", re.DOTALL),
        _said("a global mode of torch changed: {0}"),
    ),
)
