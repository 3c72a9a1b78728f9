import io
import math
from pathlib import Path

import pytest
from rich.console import Console

from demo import morse
from demo.__main__ import Outcome, main, verdict


@pytest.mark.slow
def test_the_demo(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "new" / "demo.svg"
    assert main(["--steps", "3", "--picture", str(picture)]) == 0
    out = capsys.readouterr().out
    assert "Morse forces, 3 steps" in out
    assert "Burgers PINN, 3 steps" in out
    assert out.count("│ adjoint │") == 2
    assert picture.read_text().startswith("<svg")


@pytest.mark.parametrize(("error", "status"), [(1e-12, 0), (1e-8, 1), (math.nan, 1)])
def test_wrong_gradients_are_a_loud_failure(error: float, status: int) -> None:
    console = Console(file=io.StringIO(), width=100)
    outcome = Outcome(morse.lesson(1), [], {}, error)
    assert verdict([outcome], console) == status
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert ("WRONG GRADIENTS: Morse forces differs from eager by" in said) == bool(status)
