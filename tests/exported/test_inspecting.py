from __future__ import annotations

from pathlib import Path

import pytest
import torch

import adjoint
from adjoint.errors import LoadError
from adjoint.exported import inspecting
from adjoint.exported.inspecting import inspected
from adjoint.store.entries import digest_of


def test_it_says_what_a_file_holds(tmp_path: Path) -> None:
    module = torch.nn.Linear(3, 2)
    path = tmp_path / "linear.adjoint"
    adjoint.export(module, (torch.rand(4, 3),), path, dynamic={"input": {0: (1, 100)}}, orders=2)
    text = inspected(path)
    for part in (
        "input: float32[",
        "result 0: float32[",
        ".shape[0], 1 to 100",
        "to order 2, with respect to input",
        "weight",
        "x86-64",
        torch.__version__,
        "torch.nn.modules.linear.Linear",
        digest_of(path.read_bytes()),
        "fits here    yes",
    ):
        assert part in text, part


def test_it_says_why_a_file_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = adjoint.export(torch.sin, (torch.rand(3),), tmp_path / "sine.adjoint")

    def refuse(exported: object) -> None:
        raise LoadError("another torch")

    monkeypatch.setattr(inspecting, "require_torch", refuse)
    assert "fits here    no: another torch" in inspected(path)
