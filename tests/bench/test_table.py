import io

from rich.console import Console

from adjoint.bench.results import Table, row
from adjoint.bench.table import failures, notes, rendered
from tests.bench.made_up import measured, table


def shown(table: Table) -> list[str]:
    console = Console(file=io.StringIO(), width=80)
    console.print(rendered(table))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [" ".join(line.split()) for line in text.splitlines()]


def test_every_row_is_shown_below_its_workload() -> None:
    lines = shown(table())
    below = lines[lines.index("pinn") : lines.index("gpt")]
    assert "adjoint 100.00 0.33 0.50 4.00 0.10 1 1e-07" in below
    assert sum("failed" in line for line in below) == 1
    assert notes(table()) == []


def test_a_long_name_leaves_the_columns_whole() -> None:
    name = f"{'folder/' * 8}file.py:function"
    lines = shown(Table((row(name, "func_inductor", [measured(1.0)]),)))
    assert name in lines
    assert "system step ms x eager x best cold s x ind. peak MiB error" in lines


def test_an_error_against_lesser_precision_is_marked() -> None:
    made = Table((row("f.py:f", "eager", [measured(1.0, in_float64=False)]),))
    assert any(line.endswith("1e-07*") for line in shown(made))
    assert notes(made) == ["* against eager in the precision of the step, not in float64"]


def test_failures_say_why_and_brackets_are_no_markup() -> None:
    console = Console(file=io.StringIO(), width=80)
    for line in failures(table()):
        console.print(line)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text == "pinn, inductor: RuntimeError: no [double] backward\n"
