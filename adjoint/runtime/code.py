"""Native functions, whose code lives as long as somebody holds one of them.

A program holds the functions that it calls.  Tables that let programs share functions hold them
weakly, so that code goes with the last program that calls it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class NativeFunction:
    address: int
    owner: object
    """What frees the code when nobody holds it any more."""
