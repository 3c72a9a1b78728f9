from __future__ import annotations

import json
import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import adjoint
from adjoint.errors import LoadError
from adjoint.exported import file
from adjoint.exported.file import (
    Beside,
    Exported,
    Gpu,
    GpuKernels,
    read,
    trusted,
    write_whole,
    written,
)
from adjoint.store.entries import Entry, Header, packed, unpacked


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("file") / "sine.adjoint"
    return adjoint.export(lambda x: x.sin() * 2, (torch.rand(3),), path).read_bytes()


def test_a_file_is_read_as_it_was_written(content: bytes) -> None:
    found = read(content)
    assert isinstance(found, Exported)
    assert written(found) == content
    elsewhere = replace(found, tensors=Beside("weights.safetensors", "0" * 64))
    assert read(written(elsewhere)).tensors == elsewhere.tensors


CODES = (GpuKernels((8, 0), {"k": b"old"}), GpuKernels((9, 0), {"k": b"new"}))
GPU = Gpu("cuda:0", True, False, CODES, {"state.w": "cuda:0"})


def test_programs_for_a_gpu(content: bytes) -> None:
    exported = replace(read(content), gpu=GPU)
    assert read(written(exported)).gpu == GPU


@pytest.mark.parametrize(
    "change",
    [
        *({"device": "cuda"}, {"device": "cpu"}, {"placed": {"w": "cuda:1"}}, {"draws": 1}),
        *({"codes": [[9, 0, {"k": 99}]]}, {"codes": [["9", 0, {}]]}, {"codes": 3}),
    ],
)
def test_what_is_no_program_for_a_gpu(content: bytes, change: dict[str, object]) -> None:
    data = written(replace(read(content), gpu=GPU))
    entry = unpacked(data)
    length = int.from_bytes(entry.payload[:8], "little")
    index = json.loads(entry.payload[8 : 8 + length])
    with pytest.raises(LoadError, match="it is damaged: "):
        read(changed(data, gpu={**index["gpu"], **change}))


def test_damage_is_found(content: bytes) -> None:
    for place in range(0, len(content), 211):
        flipped = bytearray(content)
        flipped[place] ^= 4
        with pytest.raises(LoadError):
            read(bytes(flipped))
    for length in (0, 10, 100, len(content) - 1):
        with pytest.raises(LoadError, match="no exported program, or it is damaged"):
            read(content[:length])


def test_another_entry_is_no_program(content: bytes) -> None:
    other = packed(Entry(Header("object", {"subject": "x"}), b"code"))
    message = "it is no exported program, but a cache entry of the kind 'object'"
    with pytest.raises(LoadError, match=message):
        read(other)


def changed(content: bytes, **fields: object) -> bytes:
    """The file with other fields in its index, and a digest that is right."""
    entry = unpacked(content)
    length = int.from_bytes(entry.payload[:8], "little")
    index = {**json.loads(entry.payload[8 : 8 + length]), **fields}
    text = json.dumps(index).encode()
    payload = len(text).to_bytes(8, "little") + text + entry.payload[8 + length :]
    return packed(replace(entry, payload=payload))


def test_a_file_of_another_version_says_so(content: bytes) -> None:
    with pytest.raises(LoadError, match="another version of adjoint"):
        read(changed(content, schema="0"))


@pytest.mark.parametrize(
    "fields",
    [
        {"records": ["[[],3]"]},
        {"records": ["["]},
        {"records": []},
        {"plans": [["x"]]},
        {"plans": 3},
        {"targets": [{}]},
        {"targets": 7},
        {"tensors": 99},
        {"tensors": ["../../etc/passwd", ""]},
        {"tensors": ["..", ""]},
        {"blobs": [[0, 1 << 60]]},
        {"blobs": [[-1, 1]]},
        {"blobs": []},
    ],
)
def test_what_has_no_sense_is_refused(content: bytes, fields: dict[str, object]) -> None:
    with pytest.raises(LoadError):
        read(changed(content, **fields))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"records": [3]}, "str is expected, not 3"),
        ({"placed": 3}, "not so: a table"),
    ],
)
def test_a_field_of_another_type_is_refused(
    content: bytes, fields: dict[str, object], why: str
) -> None:
    data = written(replace(read(content), gpu=GPU))
    if "placed" in fields:
        entry = unpacked(data)
        length = int.from_bytes(entry.payload[:8], "little")
        fields = {"gpu": {**json.loads(entry.payload[8 : 8 + length])["gpu"], **fields}}
    with pytest.raises(LoadError, match=f"it is damaged: .*{why}"):
        read(changed(data, **fields))


def test_files_that_others_may_write_are_not_read(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "sine.adjoint"
    path.write_bytes(content)
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        with pytest.raises(LoadError, match=f"others may write to {path}: chmod go-w {path}"):
            trusted(path)
    path.chmod(0o444)
    assert trusted(path) == content


def test_files_of_another_user_are_not_read(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "sine.adjoint"
    path.write_bytes(content)
    path.chmod(0o644)
    if path.stat().st_uid == 0:
        # Files of root are everyone's to read: root could do anything anyway.
        os.chown(path, 12345, 12345)
        monkeypatch.setattr(os, "geteuid", lambda: 0)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(LoadError, match="belongs to another user, whose machine code would run"):
        trusted(path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="No such file"):
        trusted(tmp_path / "none")
    with pytest.raises(LoadError):
        trusted(tmp_path)
    os.mkfifo(tmp_path / "pipe", 0o600)
    with pytest.raises(LoadError, match="is no file"):
        trusted(tmp_path / "pipe")


def test_a_write_is_whole_or_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_whole(path, b"first")
    assert path.stat().st_mode & 0o022 == 0

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_the_schema_names_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = file.schema()
    monkeypatch.setattr(file, "FORMAT", "other")
    assert file.schema() != before


@pytest.mark.parametrize("times", [10, pytest.param(200, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_leaves_a_whole_file(tmp_path: Path, times: int) -> None:
    path = tmp_path / "file"
    contents = [bytes([number]) * 300_000 for number in range(8)]
    write_whole(path, contents[0])
    chance = random.Random(0)
    for _ in range(times):
        child = os.fork()
        if not child:
            while True:
                write_whole(path, chance.choice(contents))
        time.sleep(chance.uniform(0, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert path.read_bytes() in contents
