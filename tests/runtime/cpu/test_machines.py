from __future__ import annotations

from unittest import mock

import llvmlite.binding as llvm
import pytest

from adjoint.runtime.cpu import machines
from adjoint.runtime.cpu.engine import compile_object
from adjoint.runtime.cpu.levels import LEVELS
from adjoint.runtime.cpu.machines import host, missing, reduced
from adjoint.target import Machine
from tests.conftest import pytest_configure

EMPTY = "define void @none() #0 {{\n  ret void\n}}\nattributes #0 = {{ {} }}\n"


def test_the_machine_at_hand_can_be_compiled_for() -> None:
    assert compile_object(EMPTY.format(host().attributes), host())


@pytest.mark.parametrize("level", LEVELS)
def test_a_level_is_this_machine_with_less_or_is_refused(level: str) -> None:
    lacking = missing(level)
    if lacking:
        with pytest.raises(ValueError, match=f"cannot run code for {level}: it has no"):
            reduced(level)
    else:
        assert reduced(level) == Machine(llvm.get_process_triple(), level)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    there = dict(llvm.get_host_cpu_features()) | {"fma": False, "f16c": False}
    monkeypatch.setattr(llvm, "get_host_cpu_features", lambda: there)
    assert {"fma", "f16c"} <= set(missing("x86-64-v3"))
    assert "fma" not in missing("x86-64-v2")
    with pytest.raises(ValueError, match="f16c, fma"):
        reduced("x86-64-v3")


@pytest.mark.parametrize("level", LEVELS)
def test_a_test_run_may_ask_for_a_level(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = mock.Mock(getoption={"--target": None, "--cpu": level}.get)
    monkeypatch.setattr(machines, "host", host)
    if missing(level):
        with pytest.raises(pytest.UsageError, match=f"--cpu {level}: .* cannot run code for"):
            pytest_configure(config)
    else:
        pytest_configure(config)
        assert machines.host().cpu == level
