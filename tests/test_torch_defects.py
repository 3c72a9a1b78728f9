"""Defects that were found in torch's own passes, each a test that passes here.

Two more are in `tests/rewrite/test_engine.py`: values that are computed anew after any change, and
an alias of an input that becomes the input; what docstrings explain and does not exist is in
`tests/test_tidy.py`.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing._internal.two_tensor import TwoTensor

import adjoint
from adjoint.differentiate.sweep import differentiate
from adjoint.graph.metadata import source_of
from adjoint.observing import Sighting, watching
from adjoint.pipeline import JOINT, POST, primal


@pytest.mark.filterwarnings("ignore:indexing with dtype torch.uint8:UserWarning")
@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool])
def test_a_mask_of_bytes_is_a_mask(dtype: torch.dtype) -> None:
    """An index of `uint8` is a mask; torch's test for masks asks for `int8`."""

    def function(x: Tensor, mask: Tensor, value: Tensor) -> Tensor:
        x = x * 2
        x[mask] = value
        return x

    inputs = torch.randn(4, 3), torch.tensor([1, 0, 0, 1], dtype=dtype), torch.randn(3)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="adjoint")
    torch.testing.assert_close(compiled(*inputs), function(*inputs))


def test_an_index_of_int8_is_refused_as_in_eager() -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return (x * 2)[index]

    index = torch.tensor([1, 0], dtype=torch.int8)
    with pytest.raises(IndexError, match="must be long, int, byte or bool") as eager:
        function(torch.ones(2), index)
    with pytest.raises(Exception, match="must be long, int, byte or bool") as ours:
        adjoint.compile(function)(torch.ones(2), index)
    assert str(eager.value) in str(ours.value)


def test_inputs_that_are_tensor_subclasses_have_gradients() -> None:
    """Torch's error for them is never raised, because its condition cannot hold."""

    def function(x: Tensor) -> Tensor:
        return (x.sin() * x).sum()

    gradients = []
    for run in (function, adjoint.compile(function)):
        x: Any = TwoTensor(torch.arange(3.0), torch.ones(3)).requires_grad_()
        run(x).backward()
        gradients.append(x.grad)
    eager, ours = gradients
    assert isinstance(ours, TwoTensor)
    torch.testing.assert_close(ours.a, eager.a)
    torch.testing.assert_close(ours.b, eager.b)


def test_a_program_is_exported_with_every_check_on(tmp_path: Path) -> None:
    """Torch's export of a joint graph reads an undefined name when assertions are on."""
    x = torch.randn(3, requires_grad=True)
    path = adjoint.export(torch.sin, [x], tmp_path / "sine", options={"verify": True})
    torch.testing.assert_close(adjoint.load(path)(x), x.sin())


def written(x: Tensor, y: Tensor) -> Tensor:
    x.mul_(2)
    first = y.sin()
    return first.exp()


def test_lines_of_derivatives_do_not_shift_with_inputs_that_are_written() -> None:
    """A mutated input is a result too; torch then takes the line of another tangent's output."""
    inputs = [torch.randn(3), torch.randn(3, requires_grad=True)]
    captured = adjoint.capture(written, *inputs)
    joint = differentiate(captured.graph_module, [1], [1]).graph_module
    aten = torch.ops.aten
    (cosine,) = joint.graph.find_nodes(op="call_function", target=aten.cos.default)
    assert "first = y.sin()" in str(source_of(cosine))
    products = joint.graph.find_nodes(op="call_function", target=aten.mul.Tensor)
    lines = {str(source_of(node)).partition(": ")[2] for node in products}
    assert lines == {"x.mul_(2)", "first = y.sin()", "return first.exp()"}


def test_each_pass_is_seen_under_its_own_name() -> None:
    """Torch shows a pass under the name of another."""
    seen: list[str] = []

    def watch(event: object) -> None:
        if isinstance(event, Sighting) and event.nodes is not None:
            seen.append(event.stage)

    with watching(watch):
        adjoint.compile(lambda x: x.sin().sum())(torch.randn(3, requires_grad=True)).backward()
    for passes in (primal(()), JOINT, POST):
        names = [each.name for each in passes]
        starts = range(len(seen) - len(names) + 1)
        assert any(seen[start : start + len(names)] == names for start in starts), names


def test_no_exception_of_any_kind_is_swallowed() -> None:
    """Torch drops interrupts in one of its passes: whoever catches all raises again."""
    root = Path(adjoint.__file__).parent
    swallowed = [
        f"{path.relative_to(root)}:{handler.lineno}"
        for path in sorted(root.rglob("*.py"))
        for handler in ast.walk(ast.parse(path.read_text()))
        if isinstance(handler, ast.ExceptHandler)
        and (
            handler.type is None
            or (isinstance(handler.type, ast.Name) and handler.type.id == "BaseException")
        )
        and not any(isinstance(each, ast.Raise) for each in ast.walk(handler))
    ]
    assert not swallowed


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_every_consumer_on_another_stream_waits() -> None:
    """Torch makes the first consumer of a value wait for its stream, and no other."""

    def function(x: Tensor) -> Tensor:
        side, other = torch.cuda.Stream(), torch.cuda.Stream()
        y = x @ x
        for stream in (side, other):
            stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            first = y.sin()
        with torch.cuda.stream(other):
            second = y.cos()
        for stream in (side, other):
            torch.cuda.current_stream().wait_stream(stream)
        return first + second

    x = torch.randn(2048, 2048, device="cuda")
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="adjoint")
    for _ in range(5):
        torch.testing.assert_close(compiled(x), function(x))
