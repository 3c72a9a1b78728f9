from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

import adjoint
from adjoint.backend import adjoint as backend
from adjoint.errors import RewriteError
from adjoint.observing import Sighting
from adjoint.replacing import replaces
from adjoint.torch_private import trees
from tests.rewriting import calls

MATRIX = torch.ones(2, 3)
IMAGE = torch.ones(2, 3, 8, 8)


@torch.library.custom_op("adjoint_tests::add_relu", mutates_args=())
def add_relu(x: Tensor, y: Tensor) -> Tensor:
    return torch.relu(x + y)


@add_relu.register_fake
def _(x: Tensor, y: Tensor) -> Tensor:
    return torch.empty_like(x)


def keep(ctx: Any, inputs: Any, output: Tensor) -> None:
    ctx.save_for_backward(output)


def pull_back(ctx: Any, cotangent: Tensor) -> Any:
    (out,) = ctx.saved_tensors
    masked = cotangent * (out > 0)
    return masked, masked


add_relu.register_autograd(pull_back, setup_context=keep)
OP = torch.ops.adjoint_tests.add_relu.default


@adjoint.replaces(lambda x, y: torch.relu(x + y), MATRIX, MATRIX)
def fused_add_relu(x: Tensor, y: Tensor) -> Tensor:
    """relu(x + y) by one operator"""
    return torch.ops.adjoint_tests.add_relu(x, y)  # type: ignore[no-any-return]


def program(a: Tensor, b: Tensor) -> Tensor:
    return (torch.relu(a * 2 + b) * a).sum()


def test_two_operators_become_one_of_the_users_which_is_differentiated() -> None:
    seen: list[Sighting] = []
    inputs = [torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    torch._dynamo.reset()
    options: Any = {"passes": [fused_add_relu]}
    compiled = torch.compile(
        program, backend=partial(backend, observer=seen.append), options=options
    )
    results = []
    for run in (program, compiled):
        value = run(*inputs)
        first = torch.autograd.grad(value, inputs, create_graph=True)
        results.append([value, *first, *torch.autograd.grad(first[0].sum(), inputs)])
    for eager, ours in zip(*results, strict=True):
        torch.testing.assert_close(ours, eager)
    (shown,) = (each for each in seen if each.stage == "fused-add-relu")
    assert shown.order == 0
    assert shown.matches == {"fused-add-relu": 1}
    assert shown.nodes is not None
    assert shown.nodes[0] - shown.nodes[1] == 1
    assert isinstance(shown.value, fx.GraphModule)
    assert calls(shown.value, OP) == 1


def test_it_holds_for_the_call_that_asks_for_it_alone() -> None:
    seen: list[Sighting] = []
    torch._dynamo.reset()
    compiled = torch.compile(program, backend=partial(backend, observer=seen.append))
    compiled(torch.randn(4, 5), torch.randn(4, 5))
    assert all(each.stage != "fused-add-relu" for each in seen)


def test_a_replacement_of_another_shape_reaches_the_user() -> None:
    torch._dynamo.reset()
    for place in ("primal", "joint", "post"):
        wrong = replaces(lambda x: torch.exp(-x), MATRIX, place=place)(lambda x: x.sum())
        compiled = adjoint.compile(lambda a: torch.exp(-a) * 2, passes=[wrong])
        with pytest.raises(RewriteError, match=r"computes f32\[\], the pattern f32\[3\]") as caught:
            compiled(torch.ones(3, requires_grad=True))
        assert "test_replacing.py" in str(caught.value)


def test_a_guard_that_raises_names_the_rule() -> None:
    def fails(match: Any) -> bool:
        raise ZeroDivisionError("no such size")

    @adjoint.replaces(lambda x: x.exp(), torch.ones(2), where=fails)
    def power(x: Tensor) -> Tensor:
        return x.exp2()

    with pytest.raises(RewriteError, match=r"(?s)rule 'power' of pass 'power' at .*ZeroDivision"):
        adjoint.compile(torch.exp, passes=[power])(torch.ones(2))


def test_its_identity_depends_on_what_it_does() -> None:
    def one(factor: float) -> Any:
        def scaled(x: Tensor) -> Tensor:
            return torch.sin(x) * factor

        return replaces(lambda x: torch.sin(x), MATRIX)(scaled)

    def other() -> Any:
        def scaled(x: Tensor) -> Tensor:
            return torch.cos(x) * 2.0

        return replaces(lambda x: torch.sin(x), MATRIX)(scaled)

    assert one(2.0).identity == one(2.0).identity
    assert len({one(2.0).identity, one(3.0).identity, other().identity}) == 3
    elsewhere = replaces(lambda x: torch.sin(x), MATRIX, place="post")(lambda x: x.sin() * 1)
    assert elsewhere.identity.startswith("<lambda>@post:")


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        # As it was written: attention is fused by a pass of ours, which comes later.
        (lambda x: torch.softmax(x @ x.mT / 2, -1) @ x, 1),
        (lambda x: x * 1.0, 1),
        (lambda x: tuple(x.max(-1)), 1),
    ],
)
def test_it_comes_before_our_passes(pattern: Any, count: int) -> None:
    found: list[Any] = []

    def noted(match: Any) -> bool:
        found.append(match)
        return False

    made = replaces(pattern, torch.ones(2, 4, 4), where=noted)(lambda x: pattern(x))
    function = adjoint.compile(lambda a: torch.clone(trees.leaves(pattern(a))[0]), passes=[made])
    function(torch.randn(2, 3, 3))
    assert len(found) == count


def test_a_pattern_that_cannot_match_is_an_error() -> None:
    """C++ computes the sizes of an enlarged image from numbers alone."""
    with pytest.raises(
        RewriteError, match=r"(?s)pass 'enlarged': at 'primal' its pattern.*test_replacing.py"
    ):

        @adjoint.replaces(lambda x: F.interpolate(x, scale_factor=2.0), torch.ones(2, 3, 8, 8))
        def enlarged(x: Tensor) -> Tensor:
            return x.repeat_interleave(2, -1).repeat_interleave(2, -2)


@pytest.mark.parametrize(
    ("place", "after", "pattern"),
    [
        # The derivative uses what the sine is of.
        ("joint", None, lambda x: x.exp().sin()),
        # `simplify-algebra` changes it.
        ("post", None, lambda x: -x * 2.0),
        ("primal", "fuse-attention", lambda x: torch.softmax(x @ x.mT / 2, -1) @ x),
    ],
)
def test_a_pattern_that_does_not_match_itself(place: Any, after: Any, pattern: Any) -> None:
    made = replaces(pattern, torch.ones(2, 4, 4), place=place, after=after)
    why = "does not match the function that it was traced from.*derivatives or passes before it"
    if place == "primal":
        with pytest.raises(RewriteError, match=why):
            made(lambda x: pattern(x))
    else:
        with pytest.warns(UserWarning, match=f"at '{place}' its pattern {why}"):
            made(lambda x: pattern(x))


def test_a_size_that_is_read_as_a_number_is_warned_of() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x / math.sqrt(x.shape[-1])

    with pytest.warns(UserWarning, match=r"'by-size'.*reads x.shape\[1\] as a number"):

        @adjoint.replaces(scaled, torch.ones(2, 4))
        def by_size(x: Tensor) -> Tensor:
            return x.clone()


def test_arguments_without_a_derivative() -> None:
    """The mean and the variance of a normalization cannot require grad."""

    @adjoint.replaces(
        lambda x, mean, var: F.relu(F.batch_norm(x, mean, var)), IMAGE, *[torch.ones(3)] * 2
    )
    def doubled(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return x * 2

    net = torch.nn.Sequential(torch.nn.BatchNorm2d(3, affine=False), torch.nn.ReLU()).eval()
    torch.testing.assert_close(adjoint.compile(net, passes=[doubled])(IMAGE), IMAGE * 2)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: replaces(torch.relu, MATRIX)(torch.sin), "its replacement: sin does not say"),
        (lambda: replaces(torch.relu, MATRIX)(lambda x: x), "relu does not say which arguments"),
        (lambda: replaces(MATRIX, MATRIX)(lambda x: x), "it is of type Tensor, which cannot be"),  # type: ignore[arg-type]
        (
            lambda: replaces(torch.exp, MATRIX, where=3)(lambda x: x),  # type: ignore[arg-type]
            "its guard `where` is 3, which cannot be called",
        ),
        (lambda: replaces(lambda x: F.dropout(x), MATRIX)(lambda x: x), "draws random numbers"),
        (lambda: adjoint.compile(torch.sin, skip_passes=["no"])(MATRIX), "skip_passes names 'no'"),
    ],
)
def test_what_a_user_may_get_wrong_is_said_with_the_line(make: Any, why: str) -> None:
    with pytest.raises(RewriteError, match=why) as caught:
        make()
    assert "skip_passes" in why or "test_replacing.py" in str(caught.value)


def test_modules_are_functions_of_what_they_are_called_with() -> None:
    made = replaces(torch.nn.ReLU(), MATRIX)(torch.nn.Softplus())
    assert made.name == "Softplus"
    result = adjoint.compile(lambda a: torch.relu(a), passes=[made])(MATRIX)
    torch.testing.assert_close(result, F.softplus(MATRIX))
