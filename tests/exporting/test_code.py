from __future__ import annotations

import platform
from typing import Any

import pytest
import torch

from adjoint.capture.direct import capture
from adjoint.compiler import Compiler
from adjoint.errors import ExportError
from adjoint.exporting.code import Code, GpuModules, capabilities, levels
from adjoint.exporting.graphs import Exporting
from adjoint.runtime.cpu.levels import lacking
from adjoint.runtime.cpu.linking import Unlinkable
from adjoint.runtime.cpu.support import SUPPORT
from adjoint.target import CPU, cuda_target


def test_the_default_is_the_level_of_this_machine() -> None:
    (level,) = levels(None)
    assert not lacking(level)
    assert levels(["x86-64-v4", "x86-64", "x86-64-v4"]) == ("x86-64-v4", "x86-64")


def test_other_machines_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    with pytest.raises(
        ExportError, match=r"programs are exported on Linux and x86-64; this is .* on arm64"
    ):
        levels(None)


def test_a_file_without_kernels_has_glue() -> None:
    (target,) = Code(["x86-64"]).targets()
    assert target.image.functions.keys() == set(target.glue.values())
    assert not SUPPORT.keys() & set(target.image.imports)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (Unlinkable("two functions named f"), "machine code cannot be exported: two functions"),
        (KeyError("f"), "cannot be exported: the compiler failed with KeyError"),
    ],
)
def test_code_that_cannot_be_linked(
    error: Exception, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(code: Code, cpu: str) -> None:
        raise error

    monkeypatch.setattr(Code, "_target", failing)
    with pytest.raises(ExportError, match=why):
        Code(["x86-64"]).targets()


def test_kernels_for_several_gpus() -> None:
    """Plans are for the least of the compute capabilities; kernels are there for each."""
    gpus = capabilities(("9.0", "8.0", "9.0"), torch.device("cuda", 0))
    assert gpus == ((8, 0), (9, 0))
    target = cuda_target(CPU, gpus[0], draws_in_kernels=False)
    exporting = Exporting(Compiler(), target, code := GpuModules(["x86-64"], target, gpus))
    captured = capture(lambda x: (x.sin() * x).sum(0), torch.rand(5, 3))
    exporting.graph(captured.graph_module, [0], 2)
    names = {name for plan in exporting.plans for name in plan.functions}
    assert len(exporting.plans) > 3
    assert names
    for each, architecture in zip(code.codes(), (b"sm_80", b"sm_90"), strict=True):
        assert {*each.modules} == names
        for name, text in each.modules.items():
            assert b".target " + architecture in text
            assert f".entry {name}(".encode() in text
    (host,) = code.targets()
    assert "cuLaunchKernel" in host.image.imports


@pytest.mark.parametrize("asked", ["9.0", (), ("sm_90",), ("9",), ("9.0", "x")])
def test_what_is_no_compute_capability(asked: Any) -> None:
    with pytest.raises(ExportError, match="compute capabilities"):
        capabilities(asked, torch.device("cuda", 0))
