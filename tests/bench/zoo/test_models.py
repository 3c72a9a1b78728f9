from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from adjoint.bench.measure import relative_error
from adjoint.bench.problems import step_of
from adjoint.bench.zoo import models
from adjoint.bench.zoo.models import MODELS, SYSTEMS

# What compiles within a few seconds.
QUICK = [("hvp", "func_adjoint"), ("maml", "func_adjoint")]


# Whatever their parameters are, these compute norms or losses in float32.
IN_SINGLE_PRECISION = {"t5", "gpt2", "llama"}


def skip_if_missing(model: str) -> None:
    if (why := models.missing(model)) is not None:
        pytest.skip(why)


def computed(model: str, system: str, dtype: torch.dtype) -> Mapping[str, Tensor]:
    problem = MODELS[model].problem("cpu", True)
    step = step_of(problem.double() if dtype == torch.float64 else problem, system)
    return {name: x.clone() for name, x in step.computed(step.run()).items()}


@pytest.mark.parametrize("model", MODELS)
def test_eager_runs_it_in_both_precisions(model: str) -> None:
    skip_if_missing(model)
    found = computed(model, "eager", torch.float32)
    right = computed(model, "eager", torch.float64)
    assert all(x.isfinite().all() for x in right.values())
    # In the first layer of an equivariant network, all but the scalars are zero; derivatives of a
    # wave function do not depend on its last bias.
    zeros = [name for name, x in right.items() if not x.any()]
    assert zeros == [] or model in ("equivariant", "laplacian")
    assert len(zeros) < len(right) / 5
    assert 0 < relative_error(found, right) < 1e-3


@pytest.mark.parametrize(("model", "system"), QUICK)
def test_adjoint_computes_what_eager_does(model: str, system: str) -> None:
    right = computed(model, "eager", torch.float64)
    bound = 1e-6 if model in IN_SINGLE_PRECISION else 1e-9
    assert relative_error(computed(model, system, torch.float64), right) < bound


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("system", ["adjoint", "func_adjoint"])
def test_every_model_on_adjoint(model: str, system: str) -> None:
    skip_if_missing(model)
    if system not in MODELS[model].systems:
        pytest.skip("there is no derivative inside")
    test_adjoint_computes_what_eager_does(model, system)


def test_what_is_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert models.missing("e3nn") == "e3nn is not installed"
    assert models.missing("resnet") is None


def test_systems_are_known() -> None:
    assert all({*model.systems} <= {*SYSTEMS} for model in MODELS.values())
    assert MODELS["hvp"].differentiates
    assert not MODELS["resnet"].differentiates
