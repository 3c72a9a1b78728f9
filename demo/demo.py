"""Three functions that are hard to capture: what adjoint sees, and whether it agrees with eager.

Each is captured and printed, then compiled with the reference target and run beside eager on equal
inputs. The table compares outputs, mutated inputs, buffers and gradients.
"""

import copy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import adjoint

Function = Callable[[Tensor], Tensor]


class Normalized(nn.Module):
    """BatchNorm in training writes its running statistics: buffers that the graph must return."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.linear(x)))


def double_first_row(x: Tensor) -> Tensor:
    """Writing to a view of an input writes to the input."""
    x[0].mul_(2)
    return x.sum(dim=1)


def scale_by_constant_norm(x: Tensor) -> Tensor:
    """The norm is computed without gradient, so the derivative treats it as a constant."""
    with torch.no_grad():
        norm = torch.linalg.vector_norm(x)
    return torch.sin(x / norm)


@dataclass(frozen=True)
class Example:
    """A function, an input that it may overwrite, and whether that input wants a gradient."""

    function: Function
    x: Tensor
    wants_gradient: bool

    def copied(self) -> tuple[Function, Tensor]:
        x = self.x.clone().requires_grad_(self.wants_gradient)
        return copy.deepcopy(self.function), x


def examples() -> Iterator[Example]:
    yield Example(Normalized(), torch.randn(8, 6), wants_gradient=True)
    yield Example(double_first_row, torch.randn(3, 5), wants_gradient=False)
    yield Example(scale_by_constant_norm, torch.randn(4, 3), wants_gradient=True)


def observed(function: Function, run: Function, x: Tensor) -> dict[str, Tensor]:
    """Everything that a call of `run`, which is `function` or its compiled form, leaves behind."""
    output = run(x)
    seen = {"output": output.detach(), "input after the call": x.detach()}
    if output.requires_grad:
        output.square().sum().backward()
    if x.grad is not None:
        seen["gradient of the input"] = x.grad
    if isinstance(function, nn.Module):
        seen |= {f"buffer {name}": value for name, value in function.named_buffers()}
        for name, parameter in function.named_parameters():
            if parameter.grad is not None:
                seen[f"gradient of {name}"] = parameter.grad
    return seen


def largest_difference(expected: Tensor, actual: Tensor) -> float:
    return (expected.double() - actual.double()).abs().max().item()


def compared(example: Example) -> Iterator[tuple[str, float]]:
    function, x = example.copied()
    expected = observed(function, function, x)
    function, x = example.copied()
    compiled = torch.compile(function, backend="adjoint", options={"target": "reference"})
    actual = observed(function, compiled, x)
    if expected.keys() != actual.keys():
        raise RuntimeError(f"eager left {sorted(expected)} behind, adjoint {sorted(actual)}")
    for name, value in expected.items():
        yield name, largest_difference(value, actual[name])


def main() -> int:
    torch.manual_seed(0)
    console = Console()
    table = Table("function", "value", "largest difference from eager")
    agree = True
    for example in examples():
        name = getattr(example.function, "__name__", type(example.function).__name__)
        function, x = example.copied()
        console.rule(name)
        print(adjoint.capture(function, x).show())
        for value, difference in compared(example):
            table.add_row(name, value, f"{difference:.1e}")
            agree &= difference < 1e-6
    console.rule("adjoint against eager")
    console.print(table)
    return 0 if agree else 1


if __name__ == "__main__":
    sys.exit(main())
