"""Definitions: how an element of an operator's result is computed.  One module for each family."""

from adjoint.lower.definitions.elements import (
    Bound,
    Definition,
    Mapped,
    Multiplied,
    Reader,
    Reduced,
    Scattered,
)
from adjoint.lower.definitions.table import CONSTANTS, definition_of

__all__ = [
    "CONSTANTS",
    "Bound",
    "Definition",
    "Mapped",
    "Multiplied",
    "Reader",
    "Reduced",
    "Scattered",
    "definition_of",
]
