import io

from rich.console import Console

from adjoint.bench.table import failures, rendered
from tests.bench.made_up import table


def test_every_row_is_shown() -> None:
    console = Console(file=io.StringIO(), width=80)
    console.print(rendered(table()))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    (line,) = (line for line in text.splitlines() if "pinn" in line and " adjoint" in line)
    assert " ".join(line.split()) == "pinn adjoint 100.00 0.33 0.50 4.00 0.10 1 1e-07"
    assert sum("failed" in line for line in text.splitlines()) == 1


def test_failures_say_why_and_brackets_are_no_markup() -> None:
    console = Console(file=io.StringIO(), width=80)
    for line in failures(table()):
        console.print(line)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text == "pinn, inductor: RuntimeError: no [double] backward\n"
