"""PINA: every model differentiated by its inputs, and every solver and problem trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.packages.steps import (
    MARKS,
    TOLERANCE,
    Compilations,
    assert_trained_alike,
    package,
)

pytestmark = MARKS

KNOTS = {"n": 8, "min": 0.0, "max": 1.0, "mode": "auto"}


def net(inputs: int, outputs: int) -> nn.Module:
    made: nn.Module = package("pina.model").FeedForward(inputs, outputs, inner_size=4, n_layers=1)
    return made


def two_networks() -> nn.Module:
    class Both(package("pina.model").MultiFeedForward):  # type: ignore[misc]
        def forward(self, where: Tensor) -> Tensor:
            return self.first(where) * self.second(where)  # type: ignore[no-any-return]

    sizes = {"input_dimensions": 2, "output_dimensions": 1, "inner_size": 4, "n_layers": 1}
    made: nn.Module = Both({"first": sizes, "second": sizes})
    return made


def kernels() -> nn.Module:
    made: nn.Module = package("pina.model").KernelNeuralOperator(
        net(2, 3), nn.Sequential(net(3, 3), nn.Tanh()), net(3, 1)
    )
    return made


def polynomials() -> list[Callable[[Tensor], Tensor]]:
    return [lambda x: x[..., :1], lambda x: x[..., :1] * x[..., 1:], lambda x: x[..., 1:].sin()]


def splines() -> nn.Module:
    made: nn.Module = package("pina.model").VectorizedSpline(
        order=4, knots={**KNOTS, "n_splines": 2}
    )
    return made


# How each model is made, and the shape of what it takes, but for the number of points.
MODELS: dict[str, tuple[Callable[[Any], nn.Module], tuple[int, ...]]] = {
    "FeedForward": (lambda model: net(2, 1), (2,)),
    "ResidualFeedForward": (
        lambda model: model.ResidualFeedForward(2, 1, inner_size=4, n_layers=2),
        (2,),
    ),
    "MultiFeedForward": (lambda model: two_networks(), (2,)),
    "DeepONet": (lambda model: model.DeepONet(net(1, 3), net(1, 3), [0], [1]), (2,)),
    "MIONet": (lambda model: model.MIONet({net(1, 3): [0], net(1, 3): [1]}), (2,)),
    "PirateNet": (lambda model: model.PirateNet(2, 4, 1, n_layers=1), (2,)),
    "KolmogorovArnoldNetwork": (
        lambda model: model.KolmogorovArnoldNetwork([2, 3, 1], n_knots=6, grid_range=[0, 1]),
        (2,),
    ),
    "Spline": (lambda model: model.Spline(order=4, knots=KNOTS), (1,)),
    "SplineSurface": (
        lambda model: model.SplineSurface([4, 4], knots_u=KNOTS, knots_v=KNOTS),
        (2,),
    ),
    "VectorizedSpline": (lambda model: splines(), (2,)),
    "SINDy": (lambda model: model.SINDy(polynomials(), 2), (2,)),
    "FourierIntegralKernel": (
        lambda model: model.FourierIntegralKernel(
            2, 1, n_modes=2, dimensions=1, padding=2, inner_size=3, n_layers=1
        ),
        (6, 2),
    ),
    "FNO": (
        lambda model: model.FNO(
            net(2, 3), net(3, 1), n_modes=2, dimensions=1, padding=2, inner_size=3, n_layers=1
        ),
        (6, 2),
    ),
    "KernelNeuralOperator": (lambda model: kernels(), (6, 2)),
    "AveragingNeuralOperator": (
        lambda model: model.AveragingNeuralOperator(net(2, 3), net(4, 1), ["u"], ["x"], n_layers=1),
        (6, 2),
    ),
    "LowRankNeuralOperator": (
        lambda model: model.LowRankNeuralOperator(
            net(2, 3), net(4, 1), ["u"], ["x"], 1, 2, inner_size=3, n_layers=1
        ),
        (6, 2),
    ),
    "GraphNeuralOperator": (
        lambda model: model.GraphNeuralOperator(
            nn.Linear(2, 3), nn.Linear(3, 1), 1, n_layers=1, inner_size=3
        ),
        (2,),
    ),
    "EquivariantGraphNeuralOperator": (
        lambda model: model.EquivariantGraphNeuralOperator(
            1, 2, 1, 3, modes=1, hidden_dim=4, time_emb_dim=4
        ),
        (2,),
    ),
}
# Dynamo loses the history of what is extracted from a labelled tensor, for every backend: these are
# compiled without the gradient of their inputs.
LABELLED = {"AveragingNeuralOperator", "LowRankNeuralOperator"}
GRAPHS = {"GraphNeuralOperator", "EquivariantGraphNeuralOperator"}


def predict(program: Any, given: tuple[str, int]) -> dict[str, Tensor]:
    """The outputs, and their derivative by the inputs."""
    name, count = given
    generator = torch.Generator().manual_seed(count)
    inputs = 0.1 + 0.8 * torch.rand(
        count, *MODELS[name][1], generator=generator, dtype=torch.float64
    )
    inputs.requires_grad_()
    if name in GRAPHS:
        graph = package("torch_geometric.data").Data(
            x=inputs,
            pos=torch.rand(count, 3, generator=generator),
            vel=torch.rand(count, 3, generator=generator),
            edge_index=torch.stack([torch.arange(count), torch.arange(count).roll(1)]),
            edge_attr=torch.rand(count, 1, generator=generator),
        )
        found = program(graph)
        outputs = found if isinstance(found, Tensor) else found.x + found.pos.sum(-1, keepdim=True)
    elif name in LABELLED:
        labelled = package("pina").LabelTensor(inputs.detach(), ["x", "u"])
        return {"outputs": program(labelled).as_subclass(Tensor)}
    else:
        outputs = program(inputs).as_subclass(Tensor)
    (slopes,) = torch.autograd.grad(outputs.square().sum(), inputs, create_graph=True)
    return {"outputs": outputs, "slopes": slopes}


PROBLEMS: dict[str, dict[str, Any]] = {
    "AcousticWaveProblem": {},
    "AdvectionProblem": {},
    "AllenCahnProblem": {},
    "BurgersProblem": {"nu": 0.01},
    "DiffusionReactionProblem": {},
    "HelmholtzProblem": {},
    "InversePoisson2DSquareProblem": {"load": False},
    "Poisson2DSquareProblem": {},
}
PROBLEMS_LEFT_OUT = {"SupervisedProblem": "has no derivatives"}

SOLVERS: dict[str, dict[str, Any]] = {
    "PhysicsInformedSingleModelSolver": {},
    "GradientPhysicsInformedSingleModelSolver": {},
    "RBAPhysicsInformedSingleModelSolver": {},
    "CausalPhysicsInformedSingleModelSolver": {"n_steps": 2, "regularized_conditions": ["D"]},
    "CompetitivePhysicsInformedSolver": {},
    "SelfAdaptivePhysicsInformedSolver": {},
    "PhysicsInformedEnsembleSolver": {},
}
SOLVERS_LEFT_OUT = {
    **dict.fromkeys(
        (
            "SupervisedSingleModelSolver",
            "SupervisedEnsembleSolver",
            "AutoregressiveSingleModelSolver",
            "AutoregressiveEnsembleSolver",
        ),
        "trained on values, not on derivatives",
    ),
    **dict.fromkeys(
        ("SolverInterface", "BaseSolver", "SingleModelSolver", "MultiModelSolver"),
        "what solvers are derived from",
    ),
    "EnsembleSolver": "what solvers are derived from",
}


def trained(problem_name: str, solver_name: str, compiled: bool) -> dict[str, Any]:
    """A model after two epochs of the package's own trainer."""
    package("lightning").seed_everything(0, verbose=False)  # It also draws by Python's generator.
    zoo, solvers = package("pina.problem.zoo"), package("pina.solver")
    problem = getattr(zoo, problem_name)(**PROBLEMS[problem_name])
    for domain in problem.domains:
        problem.discretise_domain(6, "random", domains=domain)
    sizes = len(problem.input_variables), len(problem.output_variables)
    models = [net(*sizes) for _ in range(2)]
    start = [[each.detach().clone() for each in model.parameters()] for model in models]
    programs = [torch.compile(each, backend="adjoint") for each in models] if compiled else models
    options = dict(SOLVERS[solver_name])
    if "Ensemble" in solver_name:
        options["models"] = programs
    else:
        options["model"] = programs[0]
    if "Competitive" in solver_name:
        options["discriminator"] = programs[1]
    solver = getattr(solvers, solver_name)(problem=problem, **options)
    trainer = package("pina").Trainer(
        solver,
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.train()
    assert not torch.equal(start[0][0], next(iter(models[0].parameters())))
    return {
        "loss": trainer.callback_metrics["train_loss"],
        "weights": [[each.detach() for each in model.parameters()] for model in models],
        "unknown": {
            name: each.detach() for name, each in getattr(problem, "unknown_parameters", {}).items()
        },
    }


def assert_solved_alike(problem: str, solver: str, compiled: Compilations) -> None:
    expected = trained(problem, solver, compiled=False)
    actual = trained(problem, solver, compiled=True)
    torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE)
    compiled.assert_differentiated()


def test_all_is_here() -> None:
    assert {*package("pina.model").__all__} == {*MODELS}
    assert {*package("pina.problem.zoo").__all__} == {*PROBLEMS, *PROBLEMS_LEFT_OUT}
    assert {*package("pina.solver").__all__} == {*SOLVERS, *SOLVERS_LEFT_OUT}


@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, compiled: Compilations) -> None:
    torch.manual_seed(0)
    model = MODELS[name][0](package("pina.model")).double()
    for each in model.parameters():
        if each.is_complex():  # The package makes these in single precision.
            each.data = each.data.to(torch.complex128)
        elif not each.any():  # Nothing depends on others while these are zero.
            nn.init.uniform_(each)
    assert_trained_alike(model, predict, [(name, 5), (name, 7)], compiled)


@pytest.mark.parametrize("name", PROBLEMS)
def test_problems(name: str, compiled: Compilations) -> None:
    assert_solved_alike(name, "PhysicsInformedSingleModelSolver", compiled)


@pytest.mark.parametrize("name", SOLVERS)
def test_solvers(name: str, compiled: Compilations) -> None:
    assert_solved_alike("BurgersProblem", name, compiled)
