"""The file of an exported program.

It is an entry as the cache has them (`store/entries.py`): a digest, a header of facts, a payload.

    payload: length of the index, 8 bytes | index, JSON | blobs: machine code, tensors

Reading trusts nothing: the owner and the mode of the file, its digest, the form of everything in
the index and every number are checked before anything is mapped.
"""

from __future__ import annotations

import json
import os
import re
import stat
import struct
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from adjoint.errors import LoadError
from adjoint.exported.records import RECORD_FORM, ProgramRecord
from adjoint.forms.form import Malformed, require
from adjoint.forms.plans import PLAN_FORM
from adjoint.open_types import FromText
from adjoint.runtime.cpu.images import Image, Unmappable
from adjoint.store.entries import (
    DamagedEntry,
    Entry,
    Facts,
    Header,
    digest_of,
    packed,
    unpacked,
)
from adjoint.store.folder import replacing

KIND = "export"

# The version of the calling conventions of kernels and of the glue between them.
FORMAT = "2"

_LENGTH = struct.Struct("<Q")
_ALIGNMENT_BYTES = 64

# A larger file is not read.
MAX_BYTES = 1 << 36

Value = TypeVar("Value")


def schema() -> str:
    """A digest of the forms of the texts in a file, by which a file with other forms is refused."""
    return digest_of(f"{FORMAT}\n{RECORD_FORM.schema()}\n{PLAN_FORM.schema()}")[:16]


@dataclass(frozen=True)
class CpuCode:
    """The machine code of all programs, for one level of CPU."""

    cpu: str
    image: Image
    glue: Mapping[str, str]
    """For each resident function (`runtime/cpu/residents.py`) by its key, its name in the image."""


@dataclass(frozen=True)
class GpuKernels:
    """The kernels of all programs for one compute capability and later ones."""

    capability: tuple[int, int]
    modules: Mapping[str, bytes]
    """For each kernel by its name, PTX that defines it, which the driver assembles."""


@dataclass(frozen=True)
class Gpu:
    """What programs for a GPU need besides glue, which runs on the CPU."""

    device: str
    """Such as `cuda:0`."""
    draws_in_kernels: bool
    captures_cuda_graphs: bool
    codes: tuple[GpuKernels, ...]
    placed: Mapping[str, str]
    """The devices of tensors in the file that are not on the CPU, by the names of the tensors."""


@dataclass(frozen=True)
class PlanText:
    """A plan, and the names of the functions of its launches in an image."""

    text: str
    functions: tuple[str, ...]


@dataclass(frozen=True)
class Beside:
    """Tensors in a file of their own, in the same folder."""

    name: str
    digest: str


@dataclass(frozen=True)
class Exported:
    """The content of a file."""

    facts: Facts
    label: str
    records: tuple[ProgramRecord, ...]
    """One for each kind of sizes; the first is that of the example."""
    plans: tuple[PlanText, ...]
    targets: tuple[CpuCode, ...]
    tensors: bytes | Beside
    gpu: Gpu | None = None
    """None: programs for the CPU."""


def written(exported: Exported) -> bytes:
    """The bytes of a file."""
    blobs: list[bytes] = []

    def blob(data: bytes) -> int:
        blobs.append(data)
        return len(blobs) - 1

    targets = [
        {
            "cpu": each.cpu,
            "code": blob(each.image.code),
            "functions": dict(each.image.functions),
            "imports": list(each.image.imports),
            "table": each.image.table,
            "glue": dict(each.glue),
        }
        for each in exported.targets
    ]
    tensors = exported.tensors
    index: dict[str, object] = {
        "schema": schema(),
        "records": [RECORD_FORM.text(each) for each in exported.records],
        "plans": [[each.text, list(each.functions)] for each in exported.plans],
        "targets": targets,
        "tensors": [tensors.name, tensors.digest] if isinstance(tensors, Beside) else blob(tensors),
        "gpu": None if exported.gpu is None else _written_gpu(exported.gpu, blob),
    }
    places: list[list[int]] = []
    at = 0
    for each in blobs:
        places.append([at, len(each)])
        at += len(each) + -len(each) % _ALIGNMENT_BYTES
    index["blobs"] = places
    text = json.dumps(index, separators=(",", ":")).encode()
    body = b"".join(each + b"\0" * (-len(each) % _ALIGNMENT_BYTES) for each in blobs)
    payload = _LENGTH.pack(len(text)) + text + body
    facts = {**exported.facts, "subject": digest_of(payload)}
    return packed(Entry(Header(KIND, facts, exported.label), payload))


def _written_gpu(gpu: Gpu, blob: Callable[[bytes], int]) -> dict[str, object]:
    codes = [
        [*each.capability, {name: blob(code) for name, code in each.modules.items()}]
        for each in gpu.codes
    ]
    return {
        "device": gpu.device,
        "draws": gpu.draws_in_kernels,
        "captures": gpu.captures_cuda_graphs,
        "codes": codes,
        "placed": dict(gpu.placed),
    }


def read(data: bytes) -> Exported:
    """The content of the bytes of a file; raises `LoadError`."""
    try:
        entry = unpacked(data)
    except DamagedEntry as error:
        raise LoadError(f"it is no exported program, or it is damaged: {error}") from error
    if entry.header.kind != KIND:
        kind = entry.header.kind[:40]
        raise LoadError(f"it is no exported program, but a cache entry of the kind {kind!r}")
    try:
        return _read(entry)
    except LoadError:
        raise
    except (Malformed, Unmappable) as error:
        raise LoadError(f"it is damaged: {error}") from error
    except Exception as error:
        raise LoadError(f"it is damaged: {type(error).__name__}: {error}") from error


def _read(entry: Entry) -> Exported:
    payload = memoryview(entry.payload)
    (length,) = _LENGTH.unpack_from(payload)
    start = _LENGTH.size + length
    require(start <= len(payload), "the index lies in the file")
    index = json.loads(bytes(payload[_LENGTH.size : start]))
    if index["schema"] != schema():
        theirs = entry.header.facts.get("adjoint", "?")
        raise LoadError(f"another version of adjoint exported it ({theirs[:40]}): export it again")
    blobs = [_blob(payload[start:], place) for place in index["blobs"]]
    records = tuple(RECORD_FORM.value(_is(str, each)) for each in index["records"])
    require(bool(records), "there is a record")
    require(all(isinstance(each, ProgramRecord) for each in records), "records of a program")
    plans = tuple(
        PlanText(_is(str, text), tuple(_is(str, name) for name in names))
        for text, names in index["plans"]
    )
    targets = tuple(_target(each, blobs) for each in index["targets"])
    tensors: bytes | Beside
    if isinstance(index["tensors"], list):
        name, digest = index["tensors"]
        require(Path(_is(str, name)).name == name and name not in ("", ".."), "a plain file name")
        tensors = Beside(name, _is(str, digest))
    else:
        tensors = bytes(blobs[_is(int, index["tensors"])])
    gpu = None if index["gpu"] is None else _gpu(index["gpu"], blobs)
    header = entry.header
    return Exported(header.facts, header.label, records, plans, targets, tensors, gpu)


def _gpu(field: FromText, blobs: list[memoryview]) -> Gpu:
    device, placed = _is(str, field["device"]), _table(str, str, field["placed"])
    require({*placed.values()} <= {device}, "one GPU")
    require(re.fullmatch(r"cuda:\d{1,3}", device) is not None, "a GPU")
    codes = [
        GpuKernels(
            (_is(int, major), _is(int, minor)),
            {name: bytes(blobs[place]) for name, place in _table(str, int, modules).items()},
        )
        for major, minor, modules in field["codes"]
    ]
    draws, captures = _is(bool, field["draws"]), _is(bool, field["captures"])
    return Gpu(device, draws, captures, tuple(codes), placed)


def _blob(body: memoryview, place: FromText) -> memoryview:
    at, length = (_is(int, each) for each in place)
    require(0 <= at <= at + length <= len(body), "a blob lies in the file")
    return body[at : at + length]


def _target(field: FromText, blobs: list[memoryview]) -> CpuCode:
    functions = _table(str, int, field["functions"])
    imports = tuple(_is(str, name) for name in field["imports"])
    code = bytes(blobs[_is(int, field["code"])])
    image = Image(code, functions, imports, _is(int, field["table"]))
    image.check()
    glue = _table(str, str, field["glue"])
    require(all(name in functions for name in glue.values()), "glue has code")
    return CpuCode(_is(str, field["cpu"]), image, glue)


def _table(key: type, value: type[Value], field: object) -> dict[str, Value]:
    if not isinstance(field, dict):
        raise Malformed("not so: a table")
    return {_is(str, name): _is(value, each) for name, each in field.items()}


def _is(kind: type[Value], value: object) -> Value:
    if type(value) is not kind:
        raise Malformed(f"{kind.__name__} is expected, not {str(value)[:40]}")
    return value


# The file system ----------------------------------------------------------------------------------


def trusted(path: Path) -> bytes:
    """The bytes of a file that only its owner, who is us or root, can have written."""
    try:
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with open(os.open(path, flags), "rb", closefd=True) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise LoadError(f"{path} is no file")
            if status.st_size > MAX_BYTES:
                raise LoadError(f"{path} has {status.st_size} bytes")
            if hasattr(os, "geteuid"):
                if status.st_uid not in (0, os.geteuid()):
                    raise LoadError(
                        f"{path} belongs to another user, whose machine code would run: copy it"
                    )
                if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    raise LoadError(f"others may write to {path}: chmod go-w {path}")
            return file.read()
    except OSError as error:
        raise LoadError(f"{path} cannot be read: {error.strerror or error}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file atomically: whoever reads it finds all of the new content, or the old."""
    new = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    with replacing(path, new):
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(new, stat.S_IMODE(os.stat(new).st_mode) & ~(stat.S_IWGRP | stat.S_IWOTH))
