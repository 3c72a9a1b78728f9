"""Every linear operator of curvlinops, of a compiled model and with a compiled product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.packages.steps import MARKS, TOLERANCE, Compilations, package

pytestmark = MARKS

Batches = list[tuple[Tensor, Tensor]]

# Operators, and what they take besides a model, a loss, parameters and data.
OPERATORS: dict[str, tuple[str, dict[str, Any]]] = {
    "Hessian": ("HessianLinearOperator", {}),
    "Hessian, blocks": ("HessianLinearOperator", {"block_sizes": [2, 2]}),
    "GGN": ("GGNLinearOperator", {}),
    "empirical Fisher": ("EFLinearOperator", {}),
    "Fisher": ("FisherMCLinearOperator", {"mc_samples": 2}),
    "KFAC": ("KFACLinearOperator", {}),
    "KFAC, type 2": ("KFACLinearOperator", {"fisher_type": "type-2"}),
    "KFAC, empirical": ("KFACLinearOperator", {"fisher_type": "empirical"}),
    "KFAC, reduced": ("KFACLinearOperator", {"kfac_approx": "reduce"}),
    "EKFAC": ("EKFACLinearOperator", {"fisher_type": "type-2"}),
}
WITHOUT_LOSS = ("JacobianLinearOperator", "TransposedJacobianLinearOperator")

# Until rounding is all that is left: by default both solvers stop before, and where they stop
# depends on rounding.
CONVERGED = {"max_iter": 500, "tolerance": 1e-14, "eps": 1e-30, "stop_updating_after": 1e-14}
DAMPED = {"maxiter": 500, "atol": 1e-14, "btol": 1e-14, "damp": 0.1}

# What is made of operators: each is tried on one.
MADE_OF_OPERATORS: dict[str, Callable[[Any, Any], Tensor]] = {
    "CGInverseLinearOperator": lambda lib, matrix: (
        lib.CGInverseLinearOperator(matrix, **CONVERGED) @ vector(matrix)
    ),
    "LSMRInverseLinearOperator": lambda lib, matrix: (
        lib.LSMRInverseLinearOperator(matrix, **DAMPED) @ vector(matrix)
    ),
    "NeumannInverseLinearOperator": lambda lib, matrix: (
        lib.NeumannInverseLinearOperator(matrix, num_terms=4, scale=0.1) @ vector(matrix)
    ),
    "SubmatrixLinearOperator": lambda lib, matrix: (
        lib.SubmatrixLinearOperator(matrix, [0, 3, 5], [1, 3]) @ torch.ones(2)
    ),
    "hutchinson_trace": lambda lib, matrix: lib.hutchinson_trace(matrix, num_matvecs=3),
    "hutchpp_trace": lambda lib, matrix: lib.hutchpp_trace(matrix, num_matvecs=6),
    "xtrace": lambda lib, matrix: lib.xtrace(matrix, num_matvecs=6),
    "hutchinson_diag": lambda lib, matrix: lib.hutchinson_diag(matrix, num_matvecs=3),
    "xdiag": lambda lib, matrix: lib.xdiag(matrix, num_matvecs=6),
    "hutchinson_squared_fro": lambda lib, matrix: lib.hutchinson_squared_fro(matrix, num_matvecs=3),
}
LEFT_OUT = {
    **dict.fromkeys(("FisherType", "KFACType"), "names of options"),
    "KFACInverseLinearOperator": "inverts the factors of KFAC, and calls no model",
    **dict.fromkeys(
        (
            "lanczos_approximate_spectrum",
            "lanczos_approximate_log_spectrum",
            "LanczosApproximateSpectrumCached",
            "LanczosApproximateLogSpectrumCached",
        ),
        "products of an operator, in NumPy",
    ),
}

LOSSES: dict[str, Callable[[], nn.Module]] = {
    "squares": nn.MSELoss,
    "classes": lambda: nn.CrossEntropyLoss(reduction="sum"),
}


def vector(matrix: Any) -> Tensor:
    return torch.linspace(-1, 1, matrix.shape[1], dtype=torch.float64)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def batches(loss: str) -> Batches:
    """The last batch has another size."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for count in (4, 4, 3):
        inputs = torch.rand(count, 3, generator=generator, dtype=torch.float64)
        values = torch.rand(count, 2, generator=generator, dtype=torch.float64)
        made.append((inputs, values if loss == "squares" else values.argmax(1)))
    return made


def operator(name: str, program: Any, loss: str) -> Any:
    kind, options = OPERATORS[name]
    parameters = [each for each in program.parameters() if each.requires_grad]
    return getattr(package("curvlinops"), kind)(
        program, LOSSES[loss](), parameters, batches(loss), check_deterministic=False, **options
    )


def assert_alike(
    actual: Any, expected: Any, compiled: Compilations, by_torch_func: bool = False
) -> None:
    """Equal, and of a compiled graph.

    `by_torch_func`: Dynamo compiles nothing, for any backend, while `torch.func` is at work.
    """
    assert torch.as_tensor(expected).any()
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
    assert bool(compiled) != by_torch_func


def test_all_is_here() -> None:
    operators = {kind for kind, _ in OPERATORS.values()}
    assert {*package("curvlinops").__all__} == {
        *operators,
        *WITHOUT_LOSS,
        *MADE_OF_OPERATORS,
        *LEFT_OUT,
    }


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators_of_a_compiled_model(name: str, loss: str, compiled: Compilations) -> None:
    plain = model()
    program = torch.compile(plain, backend="adjoint")
    matrix = operator(name, plain, loss)
    columns = torch.stack([vector(matrix), vector(matrix).cos()], 1)
    torch.manual_seed(1)
    expected = matrix @ columns
    torch.manual_seed(1)
    actual = operator(name, program, loss) @ columns
    assert_alike(actual, expected, compiled, by_torch_func="KFAC" not in name)


@pytest.mark.parametrize("name", ["Hessian", "GGN", "empirical Fisher"])
def test_compiled_products(name: str, compiled: Compilations) -> None:
    matrix = operator(name, model(), "squares")
    program = torch.compile(lambda given: matrix @ given, backend="adjoint")
    assert_alike(program(vector(matrix)), matrix @ vector(matrix), compiled)


@pytest.mark.parametrize("name", WITHOUT_LOSS)
def test_jacobians(name: str, compiled: Compilations) -> None:
    kind = getattr(package("curvlinops"), name)
    plain = model()
    found = []
    for program in (plain, torch.compile(plain, backend="adjoint")):
        matrix = kind(
            program, list(plain.parameters()), batches("squares"), check_deterministic=False
        )
        found.append(matrix @ vector(matrix))
    assert_alike(found[1], found[0], compiled)


@pytest.mark.parametrize("name", MADE_OF_OPERATORS)
def test_what_is_made_of_operators(name: str, compiled: Compilations) -> None:
    curvlinops, plain = package("curvlinops"), model()
    found = []
    for program in (plain, torch.compile(plain, backend="adjoint")):
        torch.manual_seed(1)
        matrix = operator("KFAC, type 2", program, "squares")
        found.append(torch.as_tensor(MADE_OF_OPERATORS[name](curvlinops, matrix)))
    assert_alike(found[1], found[0], compiled)
