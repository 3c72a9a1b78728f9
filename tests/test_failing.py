"""Failures inside the compiler, at every stage and order: eager's answer, or one clear error.

A failure is an exception that is raised on entering some function of the package.  What
`call_user_code` raises is no failure: it is the user's own program's.
"""

from __future__ import annotations

import random
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._subclasses.fake_tensor import DataDependentOutputException

import adjoint
from adjoint import compiler, failing, kernels
from adjoint.capture import program as capturing_program
from adjoint.differentiate import sweep
from adjoint.errors import CaptureError, DifferentiationError, FallbackWarning
from adjoint.failing import call_user_code, is_user_call, variable_of, works_on
from adjoint.graph import boundary
from adjoint.partition import split
from adjoint.runtime.cpu import program as cpu_program
from adjoint.torch_private import symbols
from adjoint.trace import tracer

PACKAGE = str(Path(adjoint.__file__).parent)
KINDS = [
    *(AssertionError, IndexError, KeyError, ZeroDivisionError, RecursionError, RuntimeError),
    StopIteration,
]
FEW, MANY = 2, 40

# What tells failures from errors of the program, and what says so.
EXEMPT = (failing.__file__, boundary.__file__, str(Path(PACKAGE, "errors.py")))

# What runs programs, once they are made, or in their place runs graphs op by op.
RUNNING = (
    "runtime/bridge.py",
    "runtime/calling.py",
    "runtime/input_changes.py",
    "runtime/recipes.py",
    "graph/calling.py",
    "graph/evaluation.py",
    "returns_argument",
)


@dataclass
class Fault:
    """An exception on entering a function for the `count`th time and, if it `stays`, ever after."""

    function: str
    count: int
    error: type[Exception]
    stays: bool
    entered: dict[str, int] = field(default_factory=dict)
    raised: int = 0

    def watch(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        file = code.co_filename
        if event != "call" or not file.startswith(PACKAGE) or file in EXEMPT:
            return
        function = f"{file}:{code.co_firstlineno} {code.co_name}"
        count = self.entered[function] = self.entered.get(function, 0) + 1
        reached = count == self.count or (self.stays and count > self.count)
        if function == self.function and reached:
            self.raised += 1
            raise self.error("made up")


# It is raised as if by the package.
Fault.watch.__code__ = Fault.watch.__code__.replace(co_filename=str(Path(PACKAGE, "made_up.py")))


@contextmanager
def faulty(fault: Fault) -> Iterator[Fault]:
    """Run with `fault`.  Python takes a watch away that has raised; `location_of` sets it again."""
    location_of = boundary.location_of

    def and_on(*args: Any) -> Any:
        place = location_of(*args)
        if fault.stays:
            sys.setprofile(fault.watch)
        return place

    with mock.patch.object(boundary, "location_of", and_on):
        sys.setprofile(fault.watch)
        try:
            yield fault
        finally:
            sys.setprofile(None)


def model(x: Tensor, w: Tensor, counts: Tensor) -> Tensor:
    counts.add_(1)
    y = (x @ w).tanh()
    y = y / (1 + y.square().sum(1, keepdim=True))
    return (y * counts).softmax(1).log().sum(0)


def views(x: Tensor, w: Tensor, counts: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0].mul_(w[0, 0])
    counts[1:].copy_(y.detach()[0, 1:])
    rows = y.flatten(0)[torch.arange(y.numel() - 1)]
    return torch.cat([rows.sin(), w.exp().sum(0)]).cumsum(0)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx: Any, cotangent: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * cotangent


def custom(x: Tensor, w: Tensor, counts: Tensor) -> Tensor:
    cubes = Cube.apply(x)  # type: ignore[no-untyped-call]
    counts.mul_(2)
    return torch.nn.functional.layer_norm(cubes @ w, (3,)).relu().sum(0) + counts


PROGRAMS = [model, views, custom]


def arguments() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x, w = (torch.rand(n, 3, dtype=torch.float64, generator=generator) for n in (5, 3))
    return x.requires_grad_(), w.requires_grad_(), torch.arange(3.0, dtype=torch.float64)


def forward(function: Callable[..., Tensor], x: Tensor, w: Tensor, counts: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [function(x, w, counts)]


def gradients(
    function: Callable[..., Tensor], x: Tensor, w: Tensor, counts: Tensor
) -> list[Tensor]:
    y = function(x, w, counts)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, w])]


def penalty(function: Callable[..., Tensor], x: Tensor, w: Tensor, counts: Tensor) -> list[Tensor]:
    """Value and gradients of a loss on gradients."""
    y = function(x, w, counts)
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    return [y.detach(), *torch.autograd.grad(slope.square().sum() + y.sum(), [x, w])]


def other_sizes(
    function: Callable[..., Tensor], x: Tensor, w: Tensor, counts: Tensor
) -> list[Tensor]:
    """The same for two sizes, which are symbols from the second on."""
    first = penalty(function, x, w, counts)
    return first + penalty(function, x.detach()[:3].clone().requires_grad_(), w, counts)


WAYS = {"forward": forward, "gradients": gradients, "penalty": penalty, "sizes": other_sizes}


def fresh() -> None:
    """Nothing is compiled yet."""
    torch._dynamo.reset()
    kernels._KERNELS.clear()


def steps(program: Callable[..., Tensor], way: str) -> dict[str, int]:
    """How often each function is entered that takes part in a compilation, and in no later call."""
    function = adjoint.compile(program)
    made: list[dict[str, int]] = []
    fresh()
    for _ in range(2):
        with faulty(Fault("", 0, AssertionError, False)) as fault:
            WAYS[way](function, *arguments())
        made.append(fault.entered)
    return {
        name: count
        for name, count in made[0].items()
        if name not in made[1] and not any(each in name for each in RUNNING)
    }


def assert_as_eager(program: Callable[..., Tensor], way: str, actual: Any, inputs: Any) -> None:
    expected = arguments()
    for ours, eager in zip(actual, WAYS[way](program, *expected), strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-9, atol=1e-9)
    for ours, eager in zip(inputs, expected, strict=True):
        assert torch.equal(ours, eager)
        assert ours._version == eager._version


def assert_names_the_user(message: str) -> None:
    """One of the program's lines, and nothing of ours."""
    assert re.search(
        rf"at {re.escape(__file__)}:\d+ in (model|views|custom|forward|backward)", message
    )
    assert PACKAGE not in message


def attempt(run: Callable[[], Any], fault: Fault) -> tuple[Any, Exception | None]:
    try:
        with faulty(fault):
            return run(), None
    except (CaptureError, DifferentiationError) as error:
        return None, error


def check(program: Callable[..., Tensor], way: str, fault: Fault, unsupported: str) -> None:
    fresh()
    function = adjoint.compile(program, unsupported=unsupported)
    inputs, state = arguments(), torch.get_rng_state()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        actual, error = attempt(lambda: WAYS[way](function, *inputs), fault)
    if error is not None:
        assert unsupported == "raise"
        cause = error.__cause__
        if fault.error is StopIteration and isinstance(cause, RuntimeError):
            cause = cause.__cause__  # Python replaces one that leaves a generator.
        assert type(cause) is fault.error
        assert_names_the_user(str(error))
        assert_untouched(inputs, program)
        # It works as soon as what failed does not.
        inputs = arguments()
        actual = WAYS[way](function, *inputs)
    assert_as_eager(program, way, actual, inputs)
    assert torch.equal(state, torch.get_rng_state())
    fallbacks = [w for w in caught if issubclass(w.category, FallbackWarning)]
    assert len(fallbacks) == len(caught)
    for each in fallbacks:
        assert_names_the_user(str(each.message))
        assert each.filename == __file__
    if not fault.stays:
        assert len(fallbacks) <= 1


def assert_untouched(inputs: Sequence[Tensor], program: Callable[..., Tensor]) -> None:
    """As they were or, where the failure came in a backward, as eager would have left them."""
    before, after = arguments(), arguments()
    program(*after)
    assert torch.equal(inputs[0], before[0])
    assert any(
        torch.equal(inputs[2], each[2]) and inputs[2]._version == each[2]._version
        for each in (before, after)
    )


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("unsupported", ["eager", "raise"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.slow
def test_a_failure_anywhere(program: Callable[..., Tensor], way: str, unsupported: str) -> None:
    check_some(program, way, unsupported, MANY)


@pytest.mark.parametrize(("program", "unsupported"), [(model, "eager"), (custom, "raise")])
def test_a_failure_somewhere(program: Callable[..., Tensor], unsupported: str) -> None:
    check_some(program, "penalty", unsupported, FEW)


def check_some(program: Callable[..., Tensor], way: str, unsupported: str, count: int) -> None:
    chosen = random.Random(f"{program.__name__} {way} {unsupported}")
    entered = steps(program, way)
    for _ in range(count):
        function = chosen.choice(list(entered))
        nth = chosen.randint(1, entered[function])
        fault = Fault(function, nth, chosen.choice(KINDS), chosen.random() < 0.5)
        try:
            check(program, way, fault, unsupported)
        except BaseException as error:
            said = f"{program.__name__}, {fault.error.__name__} in {function}, the {nth}th time"
            raise AssertionError(f"{said}, stays: {fault.stays}") from error


def breaks(*args: Any, **kwargs: Any) -> Any:
    raise IndexError("made up")


# By stage: what fails, and whether it is left out without the user's asking.
STAGES: dict[str, tuple[Any, str, bool]] = {
    "trace": (tracer.Tracer, "_compute", False),
    "capture": (capturing_program, "return_results", False),
    "differentiate": (sweep.Sweep, "_pull_back", False),
    "optimize": (compiler.Compiler, "_passes", False),
    "partition": (split.Split, "forward", False),
    "reverse": (compiler.Compiler, "backward", False),
    "narrow": (compiler.Compiler, "narrowed", True),
    "sizes": (symbols, "first_violated", False),
    "lower": (compiler, "lower", True),
    "emit": (kernels, "emit_module", True),
    "load": (kernels, "load", True),
    "bind": (cpu_program, "CpuBinding", True),
}


def squares(x: Tensor, w: Tensor, counts: Tensor) -> Tensor:
    return (x @ w).tanh().square().sum(0)


@pytest.mark.parametrize("unsupported", ["eager", "raise"])
@pytest.mark.parametrize(
    "stage",
    [
        each
        if each in ("trace", "reverse", "lower")
        else pytest.param(each, marks=pytest.mark.slow)
        for each in STAGES
    ],
)
def test_a_stage_that_fails(stage: str, unsupported: str) -> None:
    owner, name, is_left_out = STAGES[stage]
    fresh()
    function, inputs = adjoint.compile(squares, unsupported=unsupported), arguments()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with mock.patch.object(owner, name, breaks):
            if unsupported == "raise" and not is_left_out:
                with pytest.raises((CaptureError, DifferentiationError)) as raised:
                    penalty(function, *inputs)
                assert type(raised.value.__cause__) is IndexError
                assert "in squares: return" in str(raised.value)
                assert not caught
            else:
                assert_as_eager(squares, "penalty", penalty(function, *inputs), inputs)
    if unsupported == "eager" or is_left_out:
        (told,) = caught
        assert told.category is FallbackWarning
        assert told.filename == __file__
        assert "IndexError: made up" in str(told.message)
        assert "in squares: return" in str(told.message)
        assert re.search("aten|tanh|torch", str(told.message))
    inputs = arguments()
    assert_as_eager(squares, "penalty", penalty(function, *inputs), inputs)


@pytest.mark.parametrize("stage", ["capture", "differentiate"])
def test_a_custom_function_in_eager(stage: str) -> None:
    """Dynamo's own graph of one has no second derivative, and does not say so."""
    owner, name, _ = STAGES[stage]
    fresh()
    function, inputs = adjoint.compile(custom, unsupported="eager"), arguments()
    with mock.patch.object(owner, name, breaks), pytest.warns(FallbackWarning, match="made up"):
        actual = penalty(function, *inputs)
    assert_as_eager(custom, "penalty", actual, inputs)


@pytest.mark.parametrize("stage", ["trace", "differentiate", "partition"])
def test_a_stage_that_fails_in_a_transform(stage: str) -> None:
    """What cannot be captured is left to `torch.func`."""
    owner, name, _ = STAGES[stage]
    x, w, counts = (each.detach() for each in arguments())

    def loss(x: Tensor) -> Tensor:
        return len(stage) * squares(x, w, counts).sum()  # Another function for each stage.

    gradient, expected = adjoint.grad(loss), torch.func.grad(loss)(x)
    with mock.patch.object(owner, name, breaks):
        if stage == "trace":
            with pytest.warns(FallbackWarning, match="IndexError: made up") as told:
                torch.testing.assert_close(gradient(x), expected)
            said = str(told[0].message)
        else:
            with pytest.raises(DifferentiationError, match="IndexError: made up") as raised:
                gradient(x)
            said = str(raised.value)
    assert f"at {__file__}:" in said
    torch.testing.assert_close(gradient(x), expected)


def breaks_as_torch_does(*args: Any, **kwargs: Any) -> Any:
    raise DataDependentOutputException(torch.ops.aten.item.default)


def test_dynamo_hides_no_failure() -> None:
    """It takes such an error of a backend for a graph break, and logs it."""
    fresh()
    with (
        mock.patch.object(capturing_program, "return_results", breaks_as_torch_does),
        pytest.raises(CaptureError, match="DataDependentOutputException"),
    ):
        forward(adjoint.compile(squares), *arguments())


def itself(x: Tensor) -> Tensor:
    return itself(x)


@pytest.mark.parametrize(
    ("program", "error"),
    [
        (lambda x: list[Tensor]()[0], IndexError),
        (lambda x: x.sum() * (1 // (len(x) - 3)), ZeroDivisionError),
        (lambda x: dict[str, Tensor]()["a"], KeyError),
        (lambda x: (x + torch.ones(4)).sum(), RuntimeError),
        (lambda x: x[7], IndexError),
        (itself, RecursionError),
    ],
)
def test_what_eager_raises_is_raised(program: Callable[..., Any], error: type[Exception]) -> None:
    for transform in (torch.func.grad, adjoint.grad):
        with pytest.raises(error) as raised:
            transform(program)(torch.ones(3))
        assert type(raised.value) is error


def test_what_a_function_works_on_is_known_by_its_code() -> None:
    @works_on("node")
    def work(node: int) -> int:
        return node

    assert work(3) == 3
    assert variable_of(work.__code__) == "node"
    assert variable_of(fresh.__code__) is None


def test_what_is_theirs_is_called() -> None:
    assert call_user_code(int, "11", base=2) == 3
    assert is_user_call(call_user_code.__code__)
    assert not is_user_call(fresh.__code__)
