"""Random changes of exported files: they are refused, or read; nothing is mapped or run."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import adjoint
from adjoint.errors import LoadError
from adjoint.exported import programs
from adjoint.exported.loading import validated
from adjoint.store.entries import packed, unpacked
from tests.forms.test_plans import mutated


def distances(x: torch.Tensor, i: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, Any]:
    y = torch.tanh(x[i] @ w)
    return y.sum(), {"all": [y * 2, x.t()]}


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    args = (torch.rand(5, 3), torch.tensor([0, 1, 4, 2]), torch.rand(3, 3))
    path = tmp_path_factory.mktemp("fuzzing") / "program.adjoint"
    return adjoint.export(
        distances, args, path, dynamic={"x": [0], "i": {0: (1, 99)}}, wrt=["x"]
    ).read_bytes()


def index_of(payload: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(payload[:8], "little")
    return json.loads(payload[8 : 8 + length]), payload[8 + length :]


def with_index(index: Any, rest: bytes) -> bytes:
    text = json.dumps(index).encode()
    return len(text).to_bytes(8, "little") + text + rest


_VALUES: list[Any] = [
    *(None, True, -1, 0, 1, 3, 1 << 40, 10**30, "", "text", [], {}, [0, 1], [-8, 8], {"f": 0}),
    *(["../x", "0"], ["f", 0], [[0, 4]], "[[],[]]", "x86-64", "x86-64-v9", 1.5, "\ud800"),
]


def changed_structure(index: Any, chance: random.Random) -> Any:
    """A few parts of an index replaced, removed or repeated."""
    for _ in range(chance.randint(1, 3)):
        at: Any = index
        while isinstance(at, dict | list) and at:
            place = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[place], dict | list) or not at[place] or chance.random() < 0.25:
                match chance.randrange(4):
                    case 0 if isinstance(at, dict):
                        del at[place]
                    case 1 if isinstance(at, list):
                        at.append(copy.deepcopy(at[place]))
                    case _:
                        at[place] = copy.deepcopy(chance.choice(_VALUES))
                break
            at = at[place]
    return index


def changed(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """A file that was damaged in one of several ways, most of them with a digest that is right."""
    kind = chance.choice(["bytes", "end", "payload", "index", "record", "plan", "header"])
    data = bytearray(content)
    if kind == "bytes":
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] ^= chance.randrange(1, 256)
        return kind, bytes(data)
    if kind == "end":
        return kind, content[: chance.randrange(len(content))]
    entry = unpacked(content)
    if kind == "header":
        facts = dict(entry.header.facts)
        facts[chance.choice(list(facts))] = str(chance.choice(_VALUES))
        return kind, packed(replace(entry, header=replace(entry.header, facts=facts)))
    if kind == "payload":
        payload = bytearray(entry.payload)
        for _ in range(chance.randint(1, 4)):
            payload[chance.randrange(len(payload))] = chance.randrange(256)
        return kind, packed(replace(entry, payload=bytes(payload)))
    index, rest = index_of(entry.payload)
    if kind == "index":
        index = changed_structure(index, chance)
    elif kind == "record":
        records = index["records"]
        records[0] = mutated(records[0], chance)
    else:
        plan = chance.choice(index["plans"])
        plan[0] = mutated(plan[0], chance)
    try:
        return kind, packed(replace(entry, payload=with_index(index, rest)))
    except UnicodeEncodeError:
        return kind, b""


@pytest.mark.parametrize("times", [300, pytest.param(20_000, marks=pytest.mark.slow)])
def test_no_file_crashes_the_reader(
    content: bytes, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "MappedImage", lambda *_: pytest.fail("code was mapped"))
    chance = random.Random(0)
    refused: Counter[str] = Counter()
    read: Counter[str] = Counter()
    for _ in range(times):
        kind, data = changed(content, chance)
        try:
            validated(data, tmp_path)
            read[kind] += 1
        except LoadError:
            refused[kind] += 1
    assert refused.keys() == {"bytes", "end", "payload", "index", "record", "plan", "header"}
    # Without the right digest nothing is read at all.
    assert not read["bytes"]
    assert not read["end"]
    assert sum(refused.values()) > times // 2
