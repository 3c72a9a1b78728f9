from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.errors import OutsideLevelError
from adjoint.graph.descriptors import ClosedOver as CapturedInput
from tests.parity import leaf, plain

Program = Callable[[Tensor], Any]


class Outside:
    """Tensors that a program does not get as arguments, and programs that use them."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.plain, self.leaf, self.grown = plain(3), leaf(3), leaf(3) * 2
        self.view = plain(4)[1:]
        self.module = nn.Linear(3, 3, dtype=torch.float64)
        self.norm = nn.BatchNorm1d(3, dtype=torch.float64)

    def reads(self, x: Tensor) -> Any:
        return x * self.plain + self.leaf * self.grown

    def reads_a_view(self, x: Tensor) -> Any:
        return x * self.view

    def writes(self, x: Tensor) -> Any:
        self.plain.add_(x.detach())
        return self.plain * x

    def writes_to_a_part(self, x: Tensor) -> Any:
        self.plain[1:].mul_(2)
        return self.plain * x

    def writes_to_a_view(self, x: Tensor) -> Any:
        self.view.mul_(2)
        return self.view * x

    def writes_with_history(self, x: Tensor) -> Any:
        self.grown.mul_(x)
        return self.grown.sin()

    def writes_to_a_leaf(self, x: Tensor) -> Any:
        with torch.no_grad():
            self.leaf.add_(1)
        return self.leaf * x

    def returns(self, x: Tensor) -> Any:
        return x * 2, self.leaf, self.plain[1:]

    def calls_a_module(self, x: Tensor) -> Any:
        return self.module(x).sin()

    def calls_a_module_that_counts(self, x: Tensor) -> Any:
        return self.norm(x.expand(4, 3) * torch.arange(4.0).double()[:, None])

    def calls_methods_and_operators(self, x: Tensor) -> Any:
        return (
            self.leaf.mul(x),
            2 - self.plain,
            self.plain[x > 0].sum(),
            torch.stack([self.leaf, x]),
        )

    @property
    def tensors(self) -> list[Tensor]:
        state = [*self.module.parameters(), *self.norm.parameters(), *self.norm.buffers()]
        return [self.plain, self.leaf, self.grown, self.view, *state]


PROGRAMS = [name for name in vars(Outside) if name not in ("__init__", "tensors", "__module__")]
PROGRAMS = [name for name in PROGRAMS if not name.startswith("__")]


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_program_closes_over_is_eagers(name: str) -> None:
    seen = []
    for compiled in (False, True):
        outside = Outside()
        sources = [outside.leaf, *outside.module.parameters(), *outside.norm.parameters()]
        program: Program = getattr(outside, name)
        torch.manual_seed(0)
        x = leaf(3)
        if compiled:
            before = [t.detach().clone() for t in outside.tensors]
            versions = [t._version for t in outside.tensors]
            captured = adjoint.capture(program, x)
            torch.testing.assert_close([t.detach() for t in outside.tensors], before)
            assert [t._version for t in outside.tensors] == versions
            result = adjoint.run(captured, x)
        else:
            result = program(x)
        results = list(result) if isinstance(result, tuple) else [result]
        total = torch.stack([r.sum() for r in results]).sum()
        gradients = torch.autograd.grad(total, [x, *sources], allow_unused=True)
        facts = [(t._version, t.requires_grad, t.is_leaf) for t in [*outside.tensors, *results]]
        seen.append((facts, [t.detach() for t in outside.tensors], results, gradients))
    assert seen[0][0] == seen[1][0]
    for expected, actual in zip(seen[0][1:], seen[1][1:], strict=True):
        assert [t is None for t in expected] == [t is None for t in actual]
        present = [[t for t in tensors if t is not None] for tensors in (actual, expected)]
        torch.testing.assert_close(*present)


def test_what_a_program_closes_over_is_an_input_of_the_graph() -> None:
    outside = Outside()
    captured = adjoint.capture(outside.reads, leaf(3))
    found = [each for each in captured.inputs if isinstance(each, CapturedInput)]
    assert [each.describe() for each in found] == [
        CapturedInput(index, "tensor").describe() for index in range(3)
    ]
    assert all(
        a is b for a, b in zip(captured.closed_over, [outside.plain, outside.leaf], strict=False)
    )


def test_a_later_call_sees_the_tensor_as_it_is_then() -> None:
    outside, x = Outside(), leaf(3)
    captured = adjoint.capture(outside.reads_a_view, x)
    outside.view.zero_()
    assert not adjoint.run(captured, x).any()


def test_a_tensor_that_shares_memory_with_an_argument_is_read() -> None:
    rows = leaf(3, 4)

    def program(row: Tensor) -> tuple[Tensor, Tensor]:
        return (row * rows[0]).sin() * rows, rows[2]

    captured = adjoint.capture(program, rows[1])
    found, wanted = adjoint.run(captured, rows[1]), program(rows[1])
    torch.testing.assert_close(found, wanted)
    assert found[1].data_ptr() == wanted[1].data_ptr()
    slopes = [torch.autograd.grad(each[0].sum(), rows)[0] for each in (found, wanted)]
    torch.testing.assert_close(*slopes)


@pytest.mark.parametrize("written", ["row", "rows", "before"])
def test_memory_shared_with_an_argument_is_not_written_to(written: str) -> None:
    rows = plain(3, 4)
    before = rows.clone()

    def program(row: Tensor) -> Tensor:
        if written == "before":
            row.add_(1)
        result = (row * rows).sum()
        if written == "row":
            row.add_(1)
        elif written == "rows":
            rows.add_(1)
        return result

    with pytest.raises(adjoint.CaptureError, match=r"shares memory with args\[0\]"):
        adjoint.capture(program, rows[1])
    assert torch.equal(rows, before)


def test_a_tensor_of_a_level_of_torch_func_is_not_closed_over() -> None:
    x = plain(3)

    def captured(scale: Tensor) -> Tensor:
        adjoint.capture(lambda z: z * scale, x)
        return scale.sum()

    for transform in (torch.func.grad, torch.func.vmap):
        with pytest.raises(OutsideLevelError, match="pass it as an argument"):
            transform(captured)(x)
