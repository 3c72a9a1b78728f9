"""Random programs of views, in-place ops and arithmetic over inputs that share memory.

Hypothesis draws numbers; `Writer` makes a Python program of them by running it as it writes it, so
that most lines fit the shapes they meet.  A line that eager refuses may stay, as the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from adjoint.errors import CaptureError
from tests.parity import Route, check

# Eager's advice about some of what is drawn.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Use of .* on expanded tensors is deprecated"),
    pytest.mark.filterwarnings("ignore:The use of .x.T. on tensors of dimension"),
]

# How an input is made of those before it: {0} is one of them.  Not by `detach`: it leaves two
# inputs one version counter without being a view, which fake tensors do not (test_inputs has it).
INPUTS = (
    "torch.randn({shape}, dtype=torch.float64)",
    "torch.randn({shape}, dtype=torch.float64).requires_grad_()",
    "torch.randn({shape}, dtype=torch.float64).requires_grad_() * 1",
    "(torch.randn({shape}, dtype=torch.float64).requires_grad_() * 1)[1:]",
    "{0}",
    "{0}[1:]",
    "{0}.t()",
    "{0}.view(-1)[1:]",
    "{0}[..., 0]",
    "{0}.data",
    "{0}.data[:1]",
    "{0}.data.view(torch.int64)",
    "{0}.data.requires_grad_()",
    "unrecorded(lambda: {0}[1:])",
)
SHAPES = ("(4,)", "(2, 3)", "(3, 2)", "(2, 2, 2)", "(3, 1)", "()")

# What a line may compute from tensors {0} and {1}, with a small number {k}.
VALUES = (
    "{0}[0]",
    "{0}[{k}:]",
    "{0}[..., -1]",
    "{0}[..., ::2]",
    "{0}.t()",
    "{0}.transpose(0, -1)",
    "{0}.view(-1)",
    "{0}.reshape(-1)",
    "{0}.unsqueeze({k})",
    "{0}.squeeze()",
    "{0}.diagonal()",
    "{0}.unbind(-1)[0]",
    "{0}.split(1)[-1]",
    "{0}.expand(2, *{0}.shape)",
    "{0}.unfold(0, 2, 1)",
    "{0}.view(-1).as_strided((2,), (1,))",
    "{0}.detach()",
    "{0}.data",
    "{0}.detach().view(torch.int64)",
    "{0}.sin()",
    "{0} * 2",
    "{0} + {1}",
    "{0} * {1}.sum()",
    "{0}.clone()",
    "torch.zeros_like({0})",
    "torch.where({0} > 0, {0}, {1}.sum())",
)
WRITES = (
    "{0}.add_(1)",
    "{0}.mul_(3)",
    "{0}.sin_()",
    "{0}.zero_()",
    "{0}.add_({1})",
    "{0}.mul_({1}.sum())",
    "{0}.copy_({1})",
    "{0}.copy_({1}.sum())",
    "{0}[0] = {1}.sum()",
    "{0}[..., 0] += 2",
    "{0}.masked_fill_({1}.sum() > 0, 1)",
    "{0}.view(-1)[{k}:].mul_(2)",
    "{0}.t().add_({0}.t())",
    "{0}.data.add_(1)",
    "{0}.detach().mul_(2)",
    "{0}.uniform_()",
)


@dataclass(frozen=True)
class Grammar:
    """What programs are written of."""

    inputs: tuple[str, ...] = INPUTS
    values: tuple[str, ...] = VALUES
    writes: tuple[str, ...] = WRITES
    metadata: tuple[str, ...] = ()
    """Changes of metadata of what a program has made itself."""


@dataclass
class Program:
    """The source of a function, and of what makes its inputs."""

    inputs: list[str]
    lines: list[str]

    def __repr__(self) -> str:
        names = ", ".join(f"x{i}" for i in range(len(self.inputs)))
        made = "".join(f"    x{i} = {source}\n" for i, source in enumerate(self.inputs))
        body = "".join(f"    {line}\n" for line in self.lines)
        return f"def make():\n{made}    return ({names},)\n\ndef program({names}):\n{body}"

    def functions(self) -> tuple[Callable[..., Any], Callable[..., Any]]:
        names = dict(ENVIRONMENT)
        exec(compile(repr(self), "<random program>", "exec"), names)
        return names["program"], names["make"]


def unrecorded(make: Callable[[], Tensor]) -> Tensor:
    with torch.no_grad():
        return make()


# Eager takes some writes that have no meaning, and views that a pure graph cannot have.
WITHOUT_A_MEANING = (
    "lie in one place",
    "internal overlap",
    "overlaps in part",
    "beyond the tensor that gradients flow to",
    "outside of the tensor",
)

ENVIRONMENT: dict[str, Any] = {"torch": torch, "unrecorded": unrecorded}

Numbers = tuple[int, int, int, int, bool]


class Writer:
    """Writes a program line by line, running each."""

    def __init__(self, grammar: Grammar | None = None) -> None:
        torch.manual_seed(0)
        self.grammar = grammar or Grammar()
        self.names: dict[str, Any] = dict(ENVIRONMENT)
        self.tensors: list[str] = []
        self.program = Program([], [])
        self.failed = False
        self.keep_errors = False

    def try_line(self, line: str) -> bool:
        try:
            exec(line, self.names)
        except (RuntimeError, IndexError, TypeError) as error:
            # Fake tensors allow a few of these.
            allowed = ("view size is not compatible", "can't be cast")
            self.keep_errors &= not any(text in str(error) for text in allowed)
            return False
        return True

    def input(self, numbers: Numbers) -> None:
        kind, first, shape, _, _ = numbers
        name = f"x{len(self.program.inputs)}"
        inputs = self.grammar.inputs
        source = inputs[kind % len(inputs)]
        if "{0}" in source and not self.tensors:
            source = inputs[kind % 3]
        viewed = self.tensors[first % len(self.tensors)] if self.tensors else ""
        if viewed and self._is_view_without_grad(self.names[viewed]):
            return
        source = source.format(viewed, shape=SHAPES[shape % len(SHAPES)])
        if self.try_line(f"{name} = {source}"):
            self.program.inputs.append(source)
            self.tensors.append(name)

    def statement(self, numbers: Numbers) -> None:
        if self.failed:
            return
        kind, first, second, k, quiet = numbers
        values, metadata = self.grammar.values, self.grammar.metadata
        templates = values + self.grammar.writes + metadata
        template = templates[kind % len(templates)]
        chosen = [self.tensors[each % len(self.tensors)] for each in (first, second)]
        if any(self._is_view_without_grad(self.names[each]) for each in chosen):
            return
        if template in metadata and chosen[0].startswith("x"):
            return
        line = template.format(*chosen, k=k)
        name = f"y{len(self.tensors)}"
        if template in values:
            line = f"{name} = {line}"
        ran = self.try_line(f"with torch.set_grad_enabled({not quiet}): {line}")
        if ran and template in values:
            self.tensors.append(name)
        if ran and self._has_history_of_integers():
            self.failed = True
            return
        if ran or self.keep_errors:
            lines = self.program.lines
            if quiet and not (lines and lines[-1].startswith("    ")):
                lines.append("with torch.no_grad():")
            lines.append(f"    {line}" if quiet else line)
            self.failed = not ran

    def _is_view_without_grad(self, tensor: Tensor) -> bool:
        """It requires grad and has no history: eager's own answers about its views vary."""
        try:
            return tensor._is_view() and tensor.requires_grad and tensor.grad_fn is None
        except RuntimeError:
            return True

    def _has_history_of_integers(self) -> bool:
        """Eager let an integer tensor require grad: nothing after that is to be relied on."""
        tensors = (self.names[each] for each in self.tensors)
        return any(t.requires_grad and not t.is_floating_point() for t in tensors)

    def returns(self, chosen: Sequence[int]) -> None:
        names = [self.tensors[each % len(self.tensors)] for each in chosen]
        self.program.lines.append(f"return [{', '.join(names)}]")


numbers = st.tuples(
    st.integers(0, 400), st.integers(0, 7), st.integers(0, 7), st.integers(0, 2), st.booleans()
)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    writer = Writer()
    writer.input((draw(st.integers(0, 2)), 0, draw(st.integers(0, 5)), 0, False))
    for each in draw(st.lists(numbers, max_size=3)):
        writer.input(each)
    writer.keep_errors = draw(st.integers(0, 9)) == 0
    for each in draw(st.lists(numbers, min_size=2, max_size=8)):
        # Most lines record: a program that is all no_grad says little.
        quiet = each[4] and each[3] > 0
        writer.statement((*each[:4], quiet))
    writer.returns(draw(st.lists(st.integers(0, 12), min_size=1, max_size=4)))
    return writer.program


def holds(program: Program, route: Route) -> None:
    if route is Route.DYNAMO:
        # What `.data` gives Dynamo does not return from a graph but takes again.
        program.lines = [line.replace(".data", ".detach()") for line in program.lines]
    function, make = program.functions()
    try:
        check(function, make, route, compiles=False)
    except (torch._dynamo.exc.Unsupported, torch._dynamo.exc.TorchRuntimeError):
        return
    except CaptureError as error:
        if not any(why in error.why for why in WITHOUT_A_MEANING):
            raise


def drawn(count: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A test over `count` programs, the same ones at each run."""

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        limits = settings(
            max_examples=count,
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        return limits(given(program=programs())(test))

    return decorate


@drawn(100)
def test_a_random_program(program: Program) -> None:
    holds(program, Route.DIRECT)


@drawn(30)
def test_a_random_program_through_dynamo(program: Program) -> None:
    holds(program, Route.DYNAMO)


@pytest.mark.slow
@drawn(2500)
def test_many_random_programs(program: Program) -> None:
    holds(program, Route.DIRECT)


@pytest.mark.slow
@drawn(300)
def test_many_random_programs_through_dynamo(program: Program) -> None:
    holds(program, Route.DYNAMO)
