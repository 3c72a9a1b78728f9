"""What programs decide by the emptiness of their inputs, in one program after another."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters

import adjoint
from adjoint.torch_private.dynamo import general_shapes
from adjoint.torch_private.fake import make_fake, new_fake_mode
from adjoint.torch_private.size_decisions import program_decides
from adjoint.torch_private.size_guards import SizeSpecialized

# What a program computes from sizes, where torch takes them to be positive.
BY_EMPTINESS: dict[str, Callable[[Tensor], Tensor]] = {
    "a mean": lambda x: x.sum() / max(x.shape[0], 1),
    "a minimum": lambda x: x.sum() + min(1, x.shape[0]),
    "the truth of a length": lambda x: x.sum() + (2 if len(x) else 3),
    "or": lambda x: x.sum() + (x.shape[0] or 7),
    "a comparison as a number": lambda x: x.sum() + (x.shape[0] > 0),
    "a product": lambda x: x.sum() + (2 if x.numel() == 0 else 3),
    "a sum": lambda x: x.sum() + max(1, x.shape[0] * 2 - 1),
    "a shape": lambda x: x.sum() + (2 if x.shape == (0, 3) else 5),
    "all sizes": lambda x: x.sum() + (2 if all(x.shape) else 3),
    "a part": lambda x: x.sum() + (x[x.shape[0] :].numel() < x.numel()),
}


@pytest.mark.parametrize("sizes", [(3, 5, 0, 7, 1, 0), (0, 1, 4, 0)])
@pytest.mark.parametrize("name", BY_EMPTINESS)
def test_what_a_program_decides_by_emptiness_is_a_guard(name: str, sizes: tuple[int, ...]) -> None:
    program = BY_EMPTINESS[name]
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="adjoint", dynamic=True)
    transformed = adjoint.value_and_grad(program)
    before = counters["stats"]["unique_graphs"]
    for size in sizes:
        x = torch.rand(size, 3)
        torch.testing.assert_close(compiled(x), program(x))
        torch.testing.assert_close(transformed(x)[0], program(x))
    assert counters["stats"]["unique_graphs"] - before <= 3


def test_what_is_decided_by_a_size_that_is_0_needs_a_number() -> None:
    mode = new_fake_mode()
    with general_shapes(), program_decides():
        x = make_fake(mode, torch.randn(0, 3), True, "x")
        with pytest.raises(SizeSpecialized, match="is 0, and the program decides by it"):
            max(x.shape[0], 1)


# What 0 would not change.
BY_NOTHING: dict[str, Callable[[Tensor], Tensor]] = {
    "no decision": lambda x: x.sum() * x.shape[0],
    "a bound": lambda x: x * 2 if x.shape[0] >= 0 else x * 3,
    "a maximum": lambda x: x * max(x.shape[0], 0),
}


@pytest.mark.parametrize("name", BY_NOTHING)
def test_what_emptiness_does_not_decide_is_no_guard(name: str) -> None:
    program = BY_NOTHING[name]
    torch._dynamo.reset()
    compiled = torch.compile(program, backend="adjoint", dynamic=True)
    before = counters["stats"]["unique_graphs"]
    for size in (4, 0, 7, 1):
        x = torch.rand(size, 3)
        torch.testing.assert_close(compiled(x), program(x))
    assert counters["stats"]["unique_graphs"] - before == 1
