import json
from pathlib import Path

import pytest

from adjoint.bench.results import Task
from adjoint.bench.worker import described, main, measure


def test_one_measurement() -> None:
    measured = measure(Task("forces", "eager", "cpu", 1, small=True))
    assert measured.step > 0
    assert measured.cold > 0
    assert measured.error is not None
    assert 0 < measured.error < 1e-4


def test_a_failure_is_left_in_the_result(tmp_path: Path) -> None:
    result = tmp_path / "result"
    with pytest.raises(KeyError):
        main([Task("gpt", "func_adjoint", "cpu", 1, small=True).to_json(), str(result)])
    assert json.loads(result.read_text()) == {"failure": "KeyError: 'func_adjoint'"}


def test_an_error_is_described_in_one_line() -> None:
    assert described(ValueError("\n one\ntwo")) == "ValueError: one"
