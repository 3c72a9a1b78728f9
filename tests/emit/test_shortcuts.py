from __future__ import annotations

import llvmlite.binding as llvm
import pytest

from adjoint.emit.shortcuts import SHORTCUTS, shortcuts


@pytest.mark.parametrize("name", SHORTCUTS)
def test_each_is_defined_with_all_that_it_calls(name: str) -> None:
    module = llvm.parse_assembly(shortcuts({name}))
    module.verify()
    missing = [f.name for f in module.functions if f.is_declaration]
    assert all(each.startswith("llvm.") for each in missing)
    assert f"short.{name}" in {f.name for f in module.functions}


def test_zero_keeps_its_sign() -> None:
    """The sign is taken from the argument last."""
    body = SHORTCUTS["tanh"].strip().splitlines()
    assert "copysign" in body[-3]


def test_nothing_is_written_for_nothing() -> None:
    assert shortcuts(set()) == ""
