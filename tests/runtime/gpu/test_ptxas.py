from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from adjoint.kernels import _loaded_on_gpu
from adjoint.runtime.code import NativeFunction
from adjoint.runtime.gpu import assembly, driver, ptxas
from adjoint.runtime.gpu.assembly import code_for
from adjoint.runtime.gpu.ptxas import Assembler, AssemblerError, assembler_for, checked_machine_code
from adjoint.store.keeping import Store, keeping_in
from adjoint.target import cuda_target
from tests.assembler import ASSEMBLER
from tests.lowering import GRID, HOPPER, graph_of, launches, lower
from tests.runtime.gpu.test_assembly import EMPTY

# The first bytes of machine code: an ELF header for NVIDIA GPUs.
HEADER = b"\x7fELF" + bytes(14) + b"\xbe\x00"


@pytest.fixture(autouse=True)
def _searched_anew() -> Iterator[None]:
    assembler_for.cache_clear()
    yield
    assembler_for.cache_clear()


def script(folder: Path, body: str) -> Assembler:
    """An assembler that runs these lines of shell."""
    path = folder / "ptxas"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return Assembler(str(path), "a script")


def writes_header(folder: Path, before: str = "cat > /dev/null") -> Assembler:
    (folder / "header").write_bytes(HEADER)
    return script(folder, f"{before}; cat {folder / 'header'}")


def test_the_assembler_reads_the_code_and_is_told_the_gpu(tmp_path: Path) -> None:
    seen, said = tmp_path / "seen", tmp_path / "said"
    assembler = writes_header(tmp_path, f'cat > {seen}; echo "$@" > {said}')
    assert assembler.assemble(b"some code", "sm_90") == HEADER
    assert seen.read_bytes() == b"some code"
    assert said.read_text().split() == ["--gpu-name=sm_90", "/dev/stdin", "-o", "/dev/stdout"]


def test_what_the_assembler_says_of_bad_code_is_the_error(tmp_path: Path) -> None:
    assembler = script(tmp_path, "cat > /dev/null; echo line 3: no such register >&2; exit 1")
    with pytest.raises(AssemblerError, match="line 3: no such register"):
        assembler.assemble(b"code", "sm_90")


def test_an_assembler_that_cannot_be_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AssemblerError, match="does not run"):
        Assembler(str(tmp_path / "missing"), "none").assemble(b"code", "sm_90")


@pytest.mark.parametrize("code", [b"", b"\x7fELF", HEADER[:18] + b"\x3e\x00", b"// text"])
def test_what_is_no_machine_code_for_a_gpu_is_refused(code: bytes) -> None:
    with pytest.raises(AssemblerError, match="it is no machine code for an NVIDIA GPU"):
        checked_machine_code(code)


def test_the_assembler_that_triton_brings_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "backends/nvidia/bin"
    folder.mkdir(parents=True)
    script(folder, "exit 1")
    (folder / "ptxas-blackwell").symlink_to(folder / "ptxas")
    monkeypatch.setattr(ptxas, "_folders_of", {"triton": [tmp_path], "nvidia": []}.__getitem__)
    hopper, blackwell = assembler_for("sm_90"), assembler_for("sm_100")
    assert hopper is not None
    assert hopper.path == str(folder / "ptxas")
    assert blackwell is not None
    assert blackwell.path == str(folder / "ptxas-blackwell")


def test_without_an_assembler_the_driver_is_given_ptx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ptxas, "_folders_of", lambda package: [])
    assert code_for(EMPTY, HOPPER).kind == "ptx"


def use(assembler: Assembler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "assembler_for", lambda cpu: assembler)


def test_what_the_assembler_rejects_the_driver_is_given_as_ptx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(script(tmp_path, "cat > /dev/null; exit 1"), monkeypatch)
    found = code_for(EMPTY, HOPPER)
    assert found.kind == "ptx"
    assert b".entry k" in found.code


def test_machine_code_is_kept_and_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = tmp_path / "count"
    assembler = writes_header(tmp_path, f"cat > /dev/null; echo >> {count}")
    use(assembler, monkeypatch)
    store = Store(tmp_path / "store", 1 << 20)
    with keeping_in(store):
        first = code_for(EMPTY, HOPPER)
        store.flush()
        second = code_for(EMPTY, HOPPER)
        use(Assembler(assembler.path, "a later script"), monkeypatch)
        code_for(EMPTY, HOPPER)
    assert first == second
    assert first.kind == "cubin"
    assert count.read_text() == "\n\n"


def test_machine_code_that_the_driver_rejects_is_loaded_as_ptx(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[bytes] = []

    def load(code: bytes, names: list[str], device: int) -> list[NativeFunction]:
        given.append(code)
        if code.startswith(b"\x7fELF"):
            raise driver.DriverError("the driver would not load code: of a later version")
        return [NativeFunction(1, None)]

    use(writes_header(tmp_path), monkeypatch)
    monkeypatch.setattr("adjoint.kernels.load_on_gpu", load)
    monkeypatch.setattr("adjoint.kernels.emit_grid", lambda kernels, target: EMPTY)
    (launch,) = launches(lower(graph_of(torch.sin, [torch.ones(8)]), GRID))
    function = _loaded_on_gpu(launch.kernel, GRID)
    assert [code[:4] for code in given] == [b"\x7fELF", b"//\n/"]
    assert function.source is not None
    assert function.source.kind == "ptx"


@pytest.mark.skipif(ASSEMBLER is None, reason="no ptxas in this environment")
@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0)])
def test_the_assembler_makes_machine_code(capability: tuple[int, int]) -> None:
    machine = cuda_target(GRID.device, capability).machine
    assert machine is not None
    assert ASSEMBLER is not None
    code = assembly.assemble(EMPTY, machine)
    assert Assembler(ASSEMBLER, "").assemble(code, machine.cpu).startswith(HEADER[:4])
