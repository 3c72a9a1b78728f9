"""Values of a closed list of types, as JSON.

    None, True, 3, "text"           themselves
    1.5                             ["float", "0x1.8p+0"], exact
    (1, 2)  [1, 2]  {1: 2}          ["tuple", 1, 2]  ["list", 1, 2]  ["dict", [1, 2]]
    torch.float32                   ["dtype", "float32"]
    aten.mm.default                 ["op", "aten::mm", "default", digest of the schema]
    s0 + 1                          ["expr", ...], of `torch_private/expressions.py`
    SlotKind.INPUT                  ["SlotKind", "INPUT"], an enumeration
    Slot(0, ...)                    ["Slot", 0, ...], a dataclass with its fields in order
    a shared expression             ["shared", 5], an earlier entry of the table of the document

Each field of a dataclass is checked against its annotation.  A value of a type that is compared by
identity is written once, and each use of it is read as the same object.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from typing import (
    TYPE_CHECKING,
    TypeAlias,
    cast,
)

import sympy
import torch

from adjoint.forms.annotations import checks_of_fields
from adjoint.open_types import FromText
from adjoint.torch_private import expressions
from adjoint.torch_private.operators import OpOverload, operator_by_name, operator_name

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

# What `json` reads and writes.
Tree: TypeAlias = FromText


class Unwritable(Exception):
    """The value cannot be serialized: the form has no text for an object of this type."""


class Malformed(Exception):
    """The text is not the form of a value."""


def require(holds: bool, what: str) -> None:
    """Raise `Malformed`, which says what should hold, unless it does."""
    if not holds:
        raise Malformed(f"not so: {what}")


@contextlib.contextmanager
def malformed_if_it_fails(*passing: type[Exception]) -> Iterator[None]:
    """Any exception that reading a text raises is `Malformed`, except for those `passing`."""
    try:
        yield
    except Exception as error:
        if isinstance(error, (Malformed, *passing)):
            raise
        raise Malformed(f"{type(error).__name__}: {error}") from error


# Attributes of torch that stand for themselves, by their names.
_ATTRIBUTES: dict[type, str] = {
    torch.dtype: "dtype",
    torch.layout: "layout",
    torch.memory_format: "memory_format",
}

_ERRORS = {each.__name__: each for each in (IndexError, RuntimeError, ValueError, TypeError)}
_ERROR_NAMES: dict[type, str] = {each: name for name, each in _ERRORS.items()}


class Form:
    """How the values of some types are written and read."""

    def __init__(
        self,
        records: Sequence[type],
        shared: Sequence[type] = (),
        functions: Mapping[str, Callable[..., object]] | None = None,
    ) -> None:
        """`records`: dataclasses and enumerations, by their names; `shared`: those of them that are
        compared by identity; `functions`: those that may be named."""
        self._records = {each.__name__: each for each in (*records, *shared)}
        assert len(self._records) == len(records) + len(shared), "two types have one name"
        self._shared = frozenset(shared)
        self._functions = dict(functions or {})
        self._names = {function: name for name, function in self._functions.items()}
        self._fields = {
            cls: checks_of_fields(cls)
            for cls in self._records.values()
            if dataclasses.is_dataclass(cls)
        }
        self._readers: Readers = {
            **{name: _reader_of(cls) for name, cls in self._records.items()},
            **_READERS,
        }

    def schema(self) -> str:
        """A description of the form: its types with their fields, and its functions."""
        said = {
            name: [each.name for each in cls]
            if issubclass(cls, Enum)
            else [field.name for field in dataclasses.fields(cast("DataclassInstance", cls))]
            for name, cls in self._records.items()
        }
        return json.dumps([said, sorted(self._functions)], sort_keys=True)

    def text(self, value: object, writer: Writing | None = None) -> str:
        """The text of a value; raises `Unwritable`."""
        writer = Writing(self) if writer is None else writer
        written = writer.tree(value)
        return json.dumps([writer.table, written], separators=(",", ":"), allow_nan=False)

    def value(self, text: str | bytes, reader: Reading | None = None) -> FromText:
        """The value of a text; raises `Malformed`."""
        reader = Reading(self) if reader is None else reader
        with malformed_if_it_fails():
            table, written = _pair(json.loads(text))
            for entry in table:
                reader.table.append(reader.value(entry))
            return reader.value(written)


def _pair(tree: Tree) -> tuple[list[Tree], Tree]:
    if not isinstance(tree, list) or len(tree) != 2 or not isinstance(tree[0], list):
        raise Malformed("a document is a table and a value")
    return tree[0], tree[1]


class Writing:
    """One document that is being written."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.table: list[Tree] = []
        self._places: dict[int, int] = {}
        self._kept: list[object] = []
        """Keeps alive the values that `_places` refers to by id."""

    def tree(self, value: FromText) -> Tree:
        kind = type(value)
        if value is None or kind is bool or kind is int or kind is str:
            return value
        if kind is tuple:
            return ["tuple", *map(self.tree, value)]
        own = self.special(value)
        if own is not None:
            return own
        if kind in self.form._fields:
            return self.record(value)
        match value:
            case float():
                return ["float", value.hex()]
            case complex():
                return ["complex", value.real.hex(), value.imag.hex()]
            case OpOverload():
                return ["op", *operator_name(value)]
            case sympy.Basic():
                return ["expr", _expression(value)]
            case torch.device():
                return ["device", str(value)]
            case Enum():
                if kind.__name__ in self.form._records:
                    return [kind.__name__, value.name]
            case slice():
                return ["slice", *map(self.tree, (value.start, value.stop, value.step))]
            case dict():
                pairs = [[self.tree(key), self.tree(each)] for key, each in value.items()]
                return ["dict", *pairs]
            case frozenset():
                return ["set", *sorted(map(self.tree, value), key=json.dumps)]
            case list() | torch.Size():
                # Arguments of fx nodes are immutable lists.
                return ["tuple" if isinstance(value, tuple) else "list", *map(self.tree, value)]
            case _:
                pass
        if kind in _ATTRIBUTES:
            return [_ATTRIBUTES[kind], str(value).removeprefix("torch.")]
        if isinstance(value, type) and value in _ERROR_NAMES:
            return ["error", _ERROR_NAMES[value]]
        if callable(value) and _hashable(value) and value in self.form._names:
            return ["function", self.form._names[value]]
        raise Unwritable(f"{kind.__module__}.{kind.__qualname__} has no form")

    def special(self, value: object) -> Tree | None:
        """The tree of a value that this kind of document handles itself; None: it does not."""
        return None

    def record(self, value: FromText) -> Tree:
        """A dataclass, by its fields."""
        kind = type(value)
        shared = kind in self.form._shared
        if shared and id(value) in self._places:
            return ["shared", self._places[id(value)]]
        fields = [self.tree(getattr(value, name)) for name, _ in self.form._fields[kind]]
        tree = [kind.__name__, *fields]
        if not shared:
            return tree
        self._places[id(value)] = len(self.table)
        self._kept.append(value)
        self.table.append(tree)
        return ["shared", self._places[id(value)]]


Reader: TypeAlias = "Callable[[Reading, list[Tree]], object]"
Readers: TypeAlias = dict[str, Reader]


class Reading:
    """One document that is being read."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.table: list[object] = []

    def value(self, tree: Tree) -> FromText:
        # Most of the time of reading is spent here.
        kind = type(tree)
        if kind is not list:
            if tree is None or kind is int or kind is str or kind is bool:
                return tree
            raise Malformed(f"{str(tree)[:80]} is the form of nothing")
        if not tree or type(tree[0]) is not str:
            raise Malformed(f"{str(tree)[:80]} is the form of nothing")
        read = self.form._readers.get(tree[0])
        return self.special(tree[0], tree[1:]) if read is None else read(self, tree[1:])

    def special(self, tag: str, parts: list[Tree]) -> FromText:
        """The value of a tag that only this document has."""
        raise Malformed(f"there is no {tag[:80]!r}")

    def _record(self, cls: type, parts: list[Tree]) -> object:
        fields = self.form._fields[cls]
        if len(parts) != len(fields):
            raise Malformed(f"{cls.__name__} has {len(fields)} fields, not {len(parts)}")
        values = [self.value(part) for part in parts]
        for (name, check), value in zip(fields, values, strict=True):
            if not check(value):
                raise Malformed(f"{cls.__name__}.{name} is no {type(value).__name__}")
        return cls(*values)

    def _values(self, parts: list[Tree]) -> list[FromText]:
        return [self.value(part) for part in parts]

    def _dict(self, parts: list[Tree]) -> dict[FromText, FromText]:
        return dict(self._values(part) for part in parts)

    def _shared(self, parts: list[Tree]) -> object:
        (place,) = parts
        if type(place) is not int or not 0 <= place < len(self.table):
            raise Malformed(f"there is no shared value {place}")
        return self.table[place]

    def _function(self, parts: list[Tree]) -> object:
        return self.form._functions[_text(parts)]


def _text(parts: Sequence[Tree]) -> str:
    (text,) = parts
    if not isinstance(text, str):
        raise Malformed("a name is a text")
    return text


def _number(parts: Sequence[Tree]) -> float:
    return float.fromhex(_text(parts))


def _complex(parts: Sequence[Tree]) -> complex:
    real, imaginary = parts
    return complex(_number([real]), _number([imaginary]))


def _attribute(kind: type) -> Callable[[Reading, list[Tree]], object]:
    def read(_: Reading, parts: list[Tree]) -> object:
        found = getattr(torch, _text(parts), None)
        if type(found) is not kind:
            raise Malformed(f"torch has no {kind.__name__} {_text(parts)[:80]!r}")
        return found

    return read


def _operator(_: Reading, parts: list[Tree]) -> object:
    name, overload, digest = (_text([part]) for part in parts)
    try:
        return operator_by_name(name, overload, digest)
    except LookupError as error:
        raise Malformed(str(error)) from error


def _reader_of(cls: type) -> Reader:
    """How an enumeration or a dataclass is read."""
    if issubclass(cls, Enum):
        return lambda _, parts: cls[_text(parts)]
    return lambda reading, parts: reading._record(cls, parts)


def _read_expression(_: Reading, parts: list[Tree]) -> object:
    (tree,) = parts
    return expressions.read(tree)


_READERS: Readers = {
    "float": lambda _, parts: _number(parts),
    "complex": lambda _, parts: _complex(parts),
    "tuple": lambda reading, parts: tuple(reading._values(parts)),
    "list": lambda reading, parts: reading._values(parts),
    "dict": lambda reading, parts: reading._dict(parts),
    "set": lambda reading, parts: frozenset(reading._values(parts)),
    "slice": lambda reading, parts: slice(*reading._values(parts)),
    "device": lambda _, parts: torch.device(_text(parts)),
    "error": lambda _, parts: _ERRORS[_text(parts)],
    "function": lambda reading, parts: reading._function(parts),
    "op": _operator,
    "expr": _read_expression,
    "shared": lambda reading, parts: reading._shared(parts),
    **{name: _attribute(kind) for kind, name in _ATTRIBUTES.items()},
}


def _expression(value: sympy.Basic) -> Tree:
    try:
        return expressions.written(value)
    except ValueError as error:
        raise Unwritable(str(error)) from error


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True
