"""Faults while programs are kept and read: results are eager's, whatever happens to the files.

Each is tried a few times in the default run, and 200 times at random moments in the long one.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from adjoint import cache, kernels
from adjoint.errors import CacheWarning
from adjoint.forms.form import Malformed
from adjoint.forms.graph_reading import Inapplicable
from adjoint.runtime.cpu import engine
from adjoint.store import keeping
from adjoint.store.entries import DamagedEntry, unpacked
from adjoint.store.folder import Folder
from adjoint.store.keeping import Store, store_for
from tests.caching import Network, fresh, gradients
from tests.forms.test_plans import mutated

TIMES = [2, pytest.param(200, marks=pytest.mark.slow)]


class Step:
    """A training step with second derivatives, compiled as in a new process, against eager."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = Network().double()
        self.x = torch.randn(7, 3, dtype=torch.float64)
        self.eager = gradients(self.net, self.net, self.x)

    def check(self, store: Store) -> None:
        # A new process has no kernels, so that their code is read, too.
        kernels._KERNELS.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CacheWarning)
            mine = gradients(fresh(self.net, store), self.net, self.x)
            store.flush()
        torch.testing.assert_close(mine, self.eager)


@pytest.fixture
def step() -> Step:
    return Step()


def new_store(path: Path) -> Store:
    """A store of its own for the folder, as a new process has one."""
    keeping.store_at.cache_clear()
    found = store_for(str(path), 1 << 30)
    assert found is not None
    return found


Fault = Callable[[list[Path], random.Random], None]


def _flip(paths: list[Path], chance: random.Random) -> None:
    for path in paths:
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)


def _truncate(paths: list[Path], chance: random.Random) -> None:
    for path in paths:
        os.truncate(path, chance.randrange(path.stat().st_size))


def _remove(paths: list[Path], chance: random.Random) -> None:
    for path in paths:
        path.unlink()


def _exchange(paths: list[Path], chance: random.Random) -> None:
    contents = [path.read_bytes() for path in paths]
    for path, data in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(data)


def _open_to_others(paths: list[Path], chance: random.Random) -> None:
    for path in paths:
        path.chmod(0o666)


def _link(paths: list[Path], chance: random.Random) -> None:
    for path in paths:
        other = path.parents[4] / f"moved {path.name} {chance.random()}"
        path.rename(other)
        path.symlink_to(other)


def _set_clock(paths: list[Path], chance: random.Random) -> None:
    for path in paths:
        moment = chance.choice([0, 1, 1 << 33])
        os.utime(path, (moment, moment))


def _put_other_versions_beside(paths: list[Path], chance: random.Random) -> None:
    """Files of the same names, of an older and a newer version of the cache, with other content."""
    for path in paths:
        kind, letters = path.parts[-3:-1]
        for version in ("0", "2"):
            other = path.parents[3] / version / kind / letters / path.name
            other.parent.mkdir(parents=True, exist_ok=True)
            other.write_bytes(chance.randbytes(chance.randrange(1000)))


FAULTS: list[Fault] = [
    *(_flip, _truncate, _remove, _exchange, _open_to_others, _link, _set_clock),
    _put_other_versions_beside,
]


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("fault", FAULTS, ids=lambda each: each.__name__)
def test_files_that_change(fault: Fault, times: int, tmp_path: Path, step: Step) -> None:
    chance = random.Random(fault.__name__)
    step.check(new_store(tmp_path))
    for _ in range(times):
        store = new_store(tmp_path)
        paths = [each.path for each in store.folder.entries()]
        if paths:
            fault(chance.sample(paths, k=chance.randint(1, len(paths))), chance)
        step.check(store)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB, which takes some of the entries and not all of them."""
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    yield tmp_path
    subprocess.run(["umount", "-l", str(tmp_path)], check=True)


@pytest.mark.parametrize("times", TIMES)
def test_a_full_disk(small_disk: Path, step: Step, times: int) -> None:
    chance = random.Random(0)
    told = 0
    for _ in range(times):
        filling = small_disk / "filling"
        filling.unlink(missing_ok=True)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with contextlib.suppress(OSError):
                filling.write_bytes(bytes(chance.randrange(1 << 16)))
            store = new_store(small_disk)
            kernels._KERNELS.clear()
            mine = gradients(fresh(step.net, store), step.net, step.x)
            store.flush()
        torch.testing.assert_close(mine, step.eager)
        # No claim is left, which other processes would wait for.
        assert not list(small_disk.glob("1/new/claim.*"))
        found = [each for each in caught if each.category is CacheWarning]
        assert len(found) <= 1
        told += len(found)
    assert told


@pytest.mark.parametrize("times", TIMES)
def test_a_folder_that_cannot_be_written(small_disk: Path, step: Step, times: int) -> None:
    """Entries are read, those that are missing are made, and nothing is written."""
    chance = random.Random(0)
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    for _ in range(times):
        step.check(new_store(small_disk))
        _remove(some_of(small_disk, chance, least=0), chance)
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
        before = sorted(small_disk.rglob("*"))
        step.check(new_store(small_disk))
        assert sorted(small_disk.rglob("*")) == before
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)


def some_of(folder: Path, chance: random.Random, least: int = 1) -> list[Path]:
    """Some of the entries in a folder."""
    paths = [each.path for each in Folder(folder, 1 << 30).entries()]
    return chance.sample(paths, k=chance.randint(least, len(paths)))


def forked(run: Callable[[], object]) -> int:
    """A process that runs this and exits with 0; its number."""
    if torch.cuda.is_initialized():
        pytest.skip("CUDA does not work in a forked process")
    child = os.fork()
    if child:
        return child
    status = 1
    with contextlib.suppress(BaseException):
        run()
        status = 0
    os._exit(status)


@pytest.mark.parametrize("times", TIMES)
def test_processes_that_are_killed(tmp_path: Path, step: Step, times: int) -> None:
    """At random moments of compiling and writing; a later process finds nothing that is wrong."""
    chance = random.Random(0)
    begun = time.monotonic()
    step.check(new_store(tmp_path))
    seconds = time.monotonic() - begun
    for _ in range(times):
        _remove(some_of(tmp_path, chance), chance)
        child = forked(lambda: step.check(new_store(tmp_path)))
        time.sleep(chance.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert Folder(tmp_path, 1 << 30).damaged() == {}
        step.check(new_store(tmp_path))


@pytest.mark.parametrize("times", TIMES)
def test_eight_processes_at_once(tmp_path: Path, step: Step, times: int) -> None:
    """All need the same entries, some of which are missing; all are right."""
    chance = random.Random(0)
    step.check(new_store(tmp_path))
    for _ in range(times):
        _remove(some_of(tmp_path, chance), chance)
        children = [forked(lambda: step.check(new_store(tmp_path))) for _ in range(8)]
        assert [os.waitpid(each, 0)[1] for each in children] == [0] * 8
        assert Folder(tmp_path, 1 << 30).damaged() == {}
        assert not list(tmp_path.glob("1/new/claim.*"))


class Readings:
    """What the readers of entries are called with, while a step reads all of its entries."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls: list[tuple[str, Callable[..., object], bytes, tuple[object, ...]]] = []
        self._record(monkeypatch, "graphs", cache, "read")
        self._record(monkeypatch, "program", cache, "_read")
        self._record(monkeypatch, "object", engine, "_checked")

    def _record(
        self, monkeypatch: pytest.MonkeyPatch, kind: str, owner: ModuleType, name: str
    ) -> None:
        function = getattr(owner, name)

        def recorded(text: bytes, *args: object) -> object:
            self.calls.append((kind, function, text, args))
            return function(text, *args)

        monkeypatch.setattr(owner, name, recorded)


def changed(kind: str, text: bytes, chance: random.Random) -> bytes:
    """What an entry holds, changed as bytes or in its structure."""
    if kind == "graphs" and chance.random() < 0.7:
        return mutated(text.decode(), chance).encode()
    if kind == "program" and chance.random() < 0.7:
        fields = json.loads(text)
        if chance.random() < 0.7:
            fields["plan"] = mutated(fields["plan"], chance)
        else:
            with contextlib.suppress(ValueError):
                fields["code"] = json.loads(mutated(json.dumps(fields["code"]), chance))
        return json.dumps(fields).encode()
    data = bytearray(text)
    for _ in range(chance.randint(1, 4)):
        data[chance.randrange(len(data))] = chance.randrange(256)
    return bytes(data[: chance.randrange(len(data))]) if chance.random() < 0.2 else bytes(data)


@pytest.mark.parametrize("times", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_entry_crashes_the_reader(
    times: int, tmp_path: Path, step: Step, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although its digest is right: it is refused, or read; nothing is mapped."""
    with monkeypatch.context() as patched:
        readings = Readings(patched)
        step.check(new_store(tmp_path))
        step.check(new_store(tmp_path))
    chance = random.Random(0)
    refused: Counter[str] = Counter()
    with monkeypatch.context() as patched:
        patched.setattr(engine, "_loaded", lambda *_: pytest.fail("code was mapped"))
        for _ in range(times):
            kind, function, text, args = chance.choice(readings.calls)
            try:
                function(changed(kind, text, chance), *args)
            except (Malformed, Inapplicable, engine.LLVMError):
                refused[kind] += 1
    assert refused.keys() == {"graphs", "program", "object"}
    step.check(new_store(tmp_path))


@pytest.mark.parametrize("times", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_files_that_are_no_entries(times: int, tmp_path: Path, step: Step) -> None:
    """Bytes of any file changed, without a new digest: it is refused."""
    step.check(new_store(tmp_path))
    chance = random.Random(0)
    files = [each.path.read_bytes() for each in Folder(tmp_path, 1 << 30).entries()]
    for _ in range(times):
        data = bytearray(chance.choice(files))
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        with pytest.raises(DamagedEntry):
            unpacked(bytes(data[: chance.randrange(len(data))] if chance.random() < 0.2 else data))
