from __future__ import annotations

import functools
from types import CellType, ModuleType
from typing import Any

import torch
from torch import nn

from adjoint.transforms.introspection import (
    attribute_in,
    attributes_of,
    function_of,
    is_filled,
    is_plain,
    looked_up,
    may_be_used,
    names_looked_up,
    scopes_of,
    shows_all,
)


class Slotted:
    __slots__ = ("one", "two")

    def __init__(self) -> None:
        self.one = 1


class Derived(Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.three = 3

    @property
    def four(self) -> int:
        return 4


def test_attributes_are_those_of_slots_and_dictionaries() -> None:
    assert attributes_of(Derived()) == {"one": 1, "three": 3}


def test_names_inside_inner_functions_are_looked_up_too() -> None:
    def outer() -> Any:
        return lambda: torch.sin

    assert {"torch", "sin"} <= {*names_looked_up(outer.__code__)}


def test_modules_are_searched_but_not_torch() -> None:
    module = ModuleType("some")
    module.scale = 2.0  # type: ignore[attr-defined]
    found = looked_up({"some": module, "torch": torch, "unused": 1}, ["some", "scale", "torch"])
    assert found == [2.0]
    assert scopes_of(torch.nn) == ()
    assert list(scopes_of(Derived)) == [Derived, Slotted, object]


def test_which_objects_show_all_they_hold() -> None:
    assert shows_all(Derived())
    assert shows_all(nn.Linear(1, 1))
    assert not shows_all(iter([1]))
    assert not may_be_used(Derived)
    assert may_be_used(functools.partial(print))
    assert is_plain((1, ("a", None)))
    assert not is_plain((1, [2]))


def test_the_function_behind_an_attribute() -> None:
    (found,) = attribute_in([vars(Derived), vars(Slotted)], "four")
    function = function_of(found)
    assert callable(function)
    assert function(Derived()) == 4
    assert attribute_in([vars(Derived)], "missing") == [None]


def test_a_cell_may_be_empty() -> None:
    assert is_filled(CellType(1))
    assert not is_filled(CellType())
