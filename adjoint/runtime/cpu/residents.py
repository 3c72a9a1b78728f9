"""Glue between kernels: native functions that stay for as long as the process runs.

LLVM compiles each when it is first needed, unless an exported program has brought its code along.
"""

from __future__ import annotations

from collections.abc import Mapping

from adjoint.store.entries import digest_of

_BROUGHT: dict[str, int] = {}


def key_of(text: str, name: str) -> str:
    """What the function `name` of an LLVM text is found by."""
    return digest_of(f"{name}\n{text}")


def bring(functions: Mapping[str, int]) -> None:
    """Functions that are loaded already: their addresses, by their keys."""
    for key, address in functions.items():
        _BROUGHT.setdefault(key, address)


def resident(text: str, name: str) -> int:
    """The address of the function `name` that an LLVM text defines."""
    found = _BROUGHT.get(key_of(text, name))
    if found is None:
        # Where everything is brought along there need be no LLVM.
        from adjoint.runtime.cpu.engine import load_resident

        found = load_resident(text, name)
    return found
