from __future__ import annotations

import sys
from pathlib import Path

import pytest

from adjoint.atlas import command
from adjoint.atlas.compilation import names_in
from adjoint.atlas.linkcheck import dead_in

MODEL = """
import torch


def energy(x, w):
    y = torch.tanh(x * w)
    z = (y * y).sum(dim=1)
    return torch.softmax(z, 0).sin().sum()


example_inputs = (torch.ones(4, 5), torch.ones(5))
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "adjoint_atlas_model.py").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return "adjoint_atlas_model.py:energy"


@pytest.mark.parametrize("format", ["md", "html"])
def test_pages_of_graphs_kernels_and_saved_values(
    model: str, format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert command.main(["--of", model, "--out", str(out), "--format", format]) == 0
    assert "graphs;" in capsys.readouterr().out
    assert dead_in(out) == []
    for kind in ("graphs", "kernels", "saved"):
        assert list((out / kind).glob(f"*_docs.{format}")), kind
    if format == "md":
        forward = (out / "graphs" / "2-forward_docs.md").read_text()
        assert "`adjoint_atlas_model.py:6` `y = torch.tanh(x * w)`" in forward
        assert "../kernels/2-0-kernel_docs.md" in forward
        names = (out / "names.md").read_text()
        (row,) = (line for line in names.split("\n") if line.startswith("| `y` |"))
        assert "graphs/2-forward_docs.md#n-tanh_default" in row
        assert "kernels/2-0-kernel_docs.md" in row
        kernel = (out / "kernels" / "2-0-kernel_docs.md").read_text()
        assert "[`tanh_default`](../graphs/2-forward_docs.md#n-tanh_default)" in kernel
        saved = [path.read_text() for path in sorted((out / "saved").iterdir())]
        assert any("| Read by | [backward graph of order 1]" in text for text in saved)


def test_two_compilations_give_the_same_bytes(model: str, tmp_path: Path) -> None:
    for out in ("one", "two"):
        assert command.main(["--of", model, "--out", str(tmp_path / out)]) == 0
    one, two = (
        {p.relative_to(tmp_path / out): p.read_bytes() for p in (tmp_path / out).rglob("*.md")}
        for out in ("one", "two")
    )
    assert one == two


def test_a_function_that_is_not_there_is_an_error(model: str) -> None:
    with pytest.raises(SystemExit):
        command.main(["--of", "adjoint_atlas_model.py:nothing"])


def test_names_that_a_line_assigns() -> None:
    assert names_in("    y, (z, *w) = f(x)") == ["y", "z", "w"]
    assert names_in("return x + 1") == ["return"]
    assert names_in("x.sin()") == []
    assert names_in("for i in range(3):") == []
