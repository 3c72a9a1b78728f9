"""Results that nobody measured."""

from adjoint.bench.results import Failure, Measurement, Table, row


def measured(
    step: float, cold: float = 1.0, error: float | None = 1e-7, in_float64: bool = True
) -> Measurement:
    return Measurement(step, cold, 2**20, error, in_float64)


def table() -> Table:
    return Table(
        (
            row("pinn", "eager", [measured(0.2, 0.2), measured(0.4, 0.4), measured(0.3, 0.3)]),
            row("pinn", "inductor", [Failure("RuntimeError: no [double] backward")]),
            row("pinn", "func_inductor", [measured(0.2, 40.0)]),
            row("pinn", "adjoint", [measured(0.1, 4.0)]),
            row("gpt", "eager", [measured(0.5)]),
            row("gpt", "adjoint", [measured(0.5, error=0.1)]),
        )
    )
