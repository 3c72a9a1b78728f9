import pytest
import torch

from adjoint.bench.problems import step_of
from adjoint.bench.zoo import equations


@pytest.mark.parametrize("make", [equations.navier_stokes, equations.beam])
def test_losses_inside_and_outside_are_the_same(make: type) -> None:
    problem = make("cpu", True).double()
    inside = problem.inside["func_inductor"](problem.net)
    parameters = dict(problem.net.named_parameters())
    torch.testing.assert_close(
        inside(parameters, *problem.batch), problem.outside(problem.net, *problem.batch)
    )


def test_the_product_is_with_the_hessian() -> None:
    problem = equations.hessian_product("cpu", True).double()
    step = step_of(problem, "eager")
    x, labels, *direction = problem.batch
    loss = torch.nn.functional.cross_entropy(problem.net(x), labels)
    parameters = list(problem.net.parameters())
    slopes = torch.autograd.grad(loss, parameters, create_graph=True)
    pairs = zip(slopes, direction, strict=True)
    along = torch.stack([(slope * each).sum() for slope, each in pairs]).sum()
    expected = torch.autograd.grad(along, parameters)
    torch.testing.assert_close(tuple(step.computed(step.run()).values()), expected)


def test_the_laplacian_is_the_trace_of_the_hessian() -> None:
    problem = equations.laplacian("cpu", True).double()
    (places,) = problem.batch
    parameters = dict(problem.net.named_parameters())
    loss = problem.inside["eager"](problem.net)(parameters, places)

    def value(place: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = problem.net(place)[0]
        return found

    energies = [
        0.5
        * (
            place.square().sum()
            - torch.func.hessian(value)(place).trace()
            - torch.func.grad(value)(place).square().sum()
        )
        for place in places
    ]
    torch.testing.assert_close(loss, torch.stack(energies).var(correction=0))


def test_what_is_written_inside_has_no_outside() -> None:
    problem = equations.maml("cpu", True)
    with pytest.raises(AssertionError, match="the derivatives of this model are written inside"):
        problem.outside(problem.net, *problem.batch)
