"""Checks that a value has an annotated type, for values that were read from a text."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping, Sequence
from typing import (
    Literal,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from adjoint.open_types import TorchValue

Check: TypeAlias = Callable[[object], bool]


def checks_of_fields(cls: type) -> list[tuple[str, Check]]:
    """The fields of a dataclass that its constructor takes, and what each may be."""
    hints = get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.init]
    return [(field.name, check_of(hints[field.name])) for field in fields]


def check_of(hint: object) -> Check:
    """Whether a value is of an annotated type: exactly, so that True is no int."""
    origin, args = get_origin(hint), get_args(hint)
    if hint is TorchValue:  # As any of `open_types.py`.
        return lambda value: True
    if hint is None:
        return lambda value: value is None
    if origin in (Union, types.UnionType):
        return _any(args)
    if origin is Literal:
        return lambda value: value in args
    if origin is tuple:
        return _tuple(args)
    if origin in (frozenset, list):
        inside = check_of(args[0])
        return lambda value: isinstance(value, origin) and all(map(inside, value))
    if origin is not None and issubclass(origin, Mapping):
        keys, values = map(check_of, args)
        return lambda value: (
            isinstance(value, dict) and all(map(keys, value)) and all(map(values, value.values()))
        )
    if origin is not None:
        return callable
    kind = cast("type", hint)
    if kind in _EXACT:
        return lambda value: type(value) is kind
    return lambda value: isinstance(value, kind)


_EXACT = (bool, int, float, str, types.NoneType)


def _any(hints: Sequence[object]) -> Check:
    """One of several types; classes are compared without a call for each."""
    exact = frozenset(each for each in hints if each in _EXACT)
    classes = tuple(
        each
        for each in hints
        if isinstance(each, type)
        and get_origin(each) is None
        and each not in exact
        and each is not TorchValue
    )
    others = [check_of(each) for each in hints if each not in exact and each not in classes]
    return lambda value: (
        type(value) in exact or isinstance(value, classes) or any(check(value) for check in others)
    )


def _tuple(args: Sequence[object]) -> Check:
    if len(args) == 2 and args[1] is Ellipsis:
        inside = check_of(args[0])
        return lambda value: isinstance(value, tuple) and all(map(inside, value))
    checks = [check_of(each) for each in args]
    return lambda value: (
        isinstance(value, tuple)
        and len(value) == len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=True))
    )
