"""Faults while programs are kept and read: results are eager's, whatever happens to the files.

Each is tried a few times in the default run, and 200 times at random moments in the long one.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from adjoint.errors import CacheWarning
from adjoint.store import keeping
from adjoint.store.folder import Folder
from adjoint.store.keeping import Store, store_for
from tests.test_kept import PROCESS, ROOT, Network, fresh, gradients

TIMES = [2, pytest.param(200, marks=pytest.mark.slow)]


class Step:
    """A training step with second derivatives, compiled as in a new process, against eager."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.net = Network().double()
        self.x = torch.randn(7, 3, dtype=torch.float64)
        self.eager = gradients(self.net, self.net, self.x)

    def check(self, store: Store) -> None:
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


FAULTS: list[Fault] = [
    *(_flip, _truncate, _remove, _exchange, _open_to_others, _link, _set_clock),
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
            mine = gradients(fresh(step.net, store), step.net, step.x)
            store.flush()
        torch.testing.assert_close(mine, step.eager)
        # No claim is left, which other processes would wait for.
        assert not list(small_disk.glob("1/new/claim.*"))
        found = [each for each in caught if each.category is CacheWarning]
        assert len(found) <= 1
        told += len(found)
    assert told


def test_a_folder_that_cannot_be_written(small_disk: Path, step: Step) -> None:
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    step.check(new_store(small_disk))
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    store = new_store(small_disk)
    step.check(store)
    assert store.hits > 0


@pytest.mark.slow
def test_processes_that_are_killed(tmp_path: Path) -> None:
    """At random moments of compiling and writing; a later process finds nothing that is wrong."""
    environment = {**os.environ, "ADJOINT_CACHE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    chance = random.Random(0)
    command = [sys.executable, "-W", "error", "-c", PROCESS]
    for _ in range(20):
        process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
        try:
            process.wait(chance.uniform(2, 9))
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert Folder(tmp_path, 1 << 30).damaged() == {}
    assert subprocess.run(command, env=environment, check=False).returncode == 0
