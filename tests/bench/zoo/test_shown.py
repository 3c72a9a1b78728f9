import io
from dataclasses import replace

from rich.console import Console

from adjoint.bench.results import Failure, Measurement, Table, row
from adjoint.bench.zoo.shown import rendered
from tests.bench.made_up import measured


def of(model: str, system: str, step: float, cold: float, mebibytes: int) -> Measurement:
    return replace(measured(step, cold), memory=mebibytes * 2**20)


def shown() -> str:
    rows = (
        row("bert", "eager", [of("bert", "eager", 0.4, 1.0, 100)]),
        row("bert", "inductor", [of("bert", "inductor", 0.2, 10.0, 80)]),
        row("bert", "adjoint", [of("bert", "adjoint", 0.1, 4.0, 40)]),
        row("vit", "eager", [of("vit", "eager", 0.1, 1.0, 100)]),
        row("vit", "inductor", [of("vit", "inductor", 0.2, 10.0, 100)]),
        row("vit", "adjoint", [of("vit", "adjoint", 0.2, 1.0, 200)]),
        row("hvp", "eager", [of("hvp", "eager", 0.3, 1.0, 10)]),
        row("hvp", "func_inductor", [Failure("RuntimeError: no")]),
        row("hvp", "func_adjoint", [of("hvp", "func_adjoint", 0.1, 1.0, 10)]),
    )
    written = io.StringIO()
    Console(file=written, width=80).print(rendered(Table(rows)))
    return written.getvalue()


def test_a_line_for_each_model_and_system() -> None:
    lines = [line.split() for line in shown().splitlines()]
    eager = ["eager", "400.00", "1.00", "2.00", "1.00", "0.10", "100", "1.25", "1e-07"]
    assert eager in lines
    assert ["adjoint", "100.00", "0.25", "0.50", "4.00", "0.40", "40", "0.50", "1e-07"] in lines
    assert any(line[:2] == ["func_inductor", "failed"] for line in lines)


def test_means_of_plain_training_and_of_derivatives() -> None:
    lines = [line.split() for line in shown().splitlines()]
    # Steps of 0.5 and 2 times the best, first calls 0.4 and 0.1, memory 0.5 and 2.
    plain = ["plain", "adjoint", "2", "0.71", "1.00", "0.20", "1.00", "vit", "2.00"]
    assert plain in lines
    assert any(line[:3] == ["derivatives", "func_adjoint", "1"] for line in lines)
