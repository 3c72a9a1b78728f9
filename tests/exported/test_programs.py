from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import adjoint
from adjoint.errors import LoadError
from adjoint.exported import programs
from adjoint.exported.file import CpuCode, read
from adjoint.exported.programs import LoadedPrograms, fitting, require_gpu
from adjoint.runtime.checking import UnexpectedResult
from adjoint.runtime.cpu import levels
from adjoint.runtime.cpu.images import Image, Unmappable
from adjoint.runtime.plans.binding import BindingFailed
from tests.exported.test_file import GPU
from tests.exports import exported


def of(cpu: str) -> CpuCode:
    return CpuCode(cpu, Image(b"", {}, (), 0), {})


def test_the_best_code_that_can_run_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    have = {"x86-64", "x86-64-v2"}
    monkeypatch.setattr(programs, "lacking", lambda level: [] if level in have else ["avx2"])
    targets = [of("x86-64-v3"), of("x86-64"), of("x86-64-v2")]
    assert fitting(targets).cpu == "x86-64-v2"
    with pytest.raises(LoadError, match=r"x86-64-v3 \(avx2\)"):
        fitting(targets[:1])
    with pytest.raises(LoadError, match="cannot run its code"):
        fitting([of("z80")])


def test_a_file_has_code_for_several_processors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.rand(100, dtype=torch.float64)
    path = tmp_path / "several.adjoint"
    cpus = ("x86-64", "x86-64-v2", "x86-64-v4")
    adjoint.export(lambda x: x.half().double() * x.exp(), (x,), path, cpus=cpus)
    assert [each.cpu for each in read(path.read_bytes()).targets] == list(cpus)
    expected = x.half().double() * x.exp()
    for flags in (levels._flags(), frozenset({"sse2"})):
        monkeypatch.setattr(levels, "_flags", lambda flags=flags: flags)
        torch.testing.assert_close(adjoint.load(path)(x), expected)


def test_another_torch_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = adjoint.export(torch.sin, (torch.rand(3),), tmp_path / "sine.adjoint")
    monkeypatch.setattr(torch, "__version__", "9.9.0")
    with pytest.raises(LoadError, match=r"exported with torch .*, and this is 9\.9\.0"):
        adjoint.load(path)


def test_programs_are_made_once(tmp_path: Path) -> None:
    loaded = exported(lambda x: x.sin() * 2, (torch.rand(3),), tmp_path)
    found = loaded._versions[0]._graph._programs
    assert isinstance(found, LoadedPrograms)
    assert found.at(0) is found.at(0)
    assert found.cpu in levels.LEVELS


@pytest.mark.parametrize(
    ("here", "chosen"), [((8, 0), "old"), ((8, 9), "old"), ((9, 0), "new"), ((12, 0), "new")]
)
def test_the_best_code_for_a_gpu(
    monkeypatch: pytest.MonkeyPatch, here: tuple[int, int], chosen: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: here)
    assert require_gpu(GPU).modules == {"k": chosen.encode()}


def test_a_gpu_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LoadError, match="for cuda:0, and this machine has no such GPU"):
        require_gpu(GPU)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (7, 5))
    with pytest.raises(LoadError, match=r"capability 7.5, and its code is for 8.0, 9.0"):
        require_gpu(GPU)


def test_code_that_cannot_be_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unmappable(image: Image, external: object) -> None:
        raise Unmappable("there is no memory for it")

    path = adjoint.export(torch.sin, (torch.rand(3),), tmp_path / "sine.adjoint")
    monkeypatch.setattr(programs, "MappedImage", unmappable)
    with pytest.raises(LoadError, match="its machine code cannot be loaded: there is no memory"):
        adjoint.load(path)


def too_large(inputs: list[object]) -> Any:
    raise BindingFailed from OverflowError("a temporary is larger than memory")


def of_another_torch(inputs: list[object]) -> Any:
    raise UnexpectedResult("aten.sin", "float16", "", False)


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (too_large, "it cannot run for these sizes: a temporary is larger than memory"),
        (of_another_torch, "float16, and not what the exporting torch returned: export it again"),
    ],
)
def test_a_call_that_does_not_fit(
    run: Any, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = SimpleNamespace(streams=0)
    program: Any = type("Failing", (), {"__call__": lambda self, inputs: run(inputs)})()
    program.plan, program.forgets_histories = plan, False
    monkeypatch.setattr(programs, "CpuProgram", lambda *_: program)
    loaded = exported(lambda x: x.sin() * 2, (torch.rand(3),), tmp_path)
    with pytest.raises(LoadError, match=why):
        loaded(torch.rand(3))
