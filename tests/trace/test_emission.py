from __future__ import annotations

import contextlib
import operator
from typing import Any

import pytest
import torch

from adjoint.errors import CaptureError
from adjoint.graph.metadata import Mode, mode_of, source_of, value_of
from adjoint.torch_private.autograd import below_autograd
from adjoint.torch_private.fake import FakeTensorMode, make_fake, new_fake_mode
from adjoint.trace.emission import Emitter, as_under, current_mode

aten = torch.ops.aten


@pytest.fixture
def fake_mode() -> FakeTensorMode:
    return new_fake_mode()


@pytest.fixture
def emitter(fake_mode: FakeTensorMode) -> Emitter:
    @contextlib.contextmanager
    def untraced() -> Any:
        with fake_mode, below_autograd(), torch.no_grad():
            yield

    return Emitter(untraced)


def fake(mode: FakeTensorMode, *shape: int, dynamic: bool = False) -> torch.Tensor:
    return make_fake(mode, torch.randn(shape), dynamic, "x")


def test_the_mode_of_now() -> None:
    assert current_mode() == Mode()
    with torch.no_grad():
        assert current_mode() == Mode(grad_enabled=False)
        with as_under(Mode()):
            assert current_mode() == Mode()
    with torch.inference_mode():
        assert current_mode() == Mode(grad_enabled=False, inference=True)


def test_a_call_knows_its_value_mode_and_line(emitter: Emitter, fake_mode: FakeTensorMode) -> None:
    x = emitter.placeholder("x", fake(fake_mode, 2, 3))
    with torch.no_grad():
        node = emitter.call(aten.sum.dim_IntList, (x, [1]))
    assert value_of(node).shape == (2,)
    assert mode_of(node) == Mode(grad_enabled=False)
    line = source_of(node)
    assert line is not None
    assert line.function == "test_a_call_knows_its_value_mode_and_line"


def test_inputs_come_before_all_else(emitter: Emitter, fake_mode: FakeTensorMode) -> None:
    emitter.call(aten.zeros.default, ([2],))
    first = emitter.placeholder("x", fake(fake_mode, 2))
    emitter.call(aten.sin.default, (first,))
    second = emitter.placeholder("x", fake(fake_mode, 2))
    assert list(emitter.graph.nodes)[:2] == [first, second]
    assert first.target != second.target


def test_what_cannot_be_written_down_is_an_attribute(emitter: Emitter) -> None:
    generator = torch.Generator()
    node = emitter.call(aten.rand.generator, ([3],), {"generator": generator})
    again = emitter.call(aten.rand.generator, ([3],), {"generator": generator})
    assert emitter.attributes == {"object_0": generator}
    assert node.kwargs["generator"].target == again.kwargs["generator"].target == "object_0"  # type: ignore[union-attr]


def test_one_of_several_results(emitter: Emitter, fake_mode: FakeTensorMode) -> None:
    x = emitter.placeholder("x", fake(fake_mode, 4))
    node = emitter.item(emitter.call(aten.sort.default, (x,)), 1)
    assert node.target is operator.getitem
    assert value_of(node).dtype is torch.int64


def test_a_view_that_strides_forbid_is_taken_of_a_copy(
    emitter: Emitter, fake_mode: FakeTensorMode
) -> None:
    x = emitter.placeholder("x", fake(fake_mode, 2, 3))
    t = emitter.call(aten.t.default, (x,))
    flat = emitter.reshape(t, [-1])
    assert flat.args[0].target is aten.clone.default  # type: ignore[union-attr]
    assert emitter.reshape(x, [-1]).args[0] is x


def test_sizes_are_computed_from_inputs(emitter: Emitter, fake_mode: FakeTensorMode) -> None:
    value = fake(fake_mode, 2, 3, dynamic=True)
    x = emitter.placeholder("x", value)
    total: Any = value.shape[0] * 2 + value.shape[1]
    node = emitter.number(total)
    assert emitter.number(total) is node
    queries = emitter.graph.find_nodes(op="call_function", target=aten.sym_size.int)
    assert {query.args for query in queries} == {(x, 0), (x, 1)}
    assert emitter.number_nodes([value.shape[0], 7])[1] == 7


def test_a_size_of_no_input_is_refused(emitter: Emitter, fake_mode: FakeTensorMode) -> None:
    size: Any = fake(fake_mode, 2, dynamic=True).shape[0]
    with pytest.raises(CaptureError, match="it is not the size of any input"):
        emitter.number(size)


def test_an_attribute_never_takes_the_name_of_another(emitter: Emitter) -> None:
    first = object()
    emitter.attributes["body_1"] = first  # What is left of another graph.
    names = {emitter.attribute("body", object()).target for _ in range(2)}
    assert names == {"body_0", "body_2"}
    assert emitter.attributes["body_1"] is first


def scattered(x: torch.Tensor, index: torch.Tensor, half: int) -> torch.Tensor:
    return torch.zeros(2 * half + 1, x.shape[1]).index_add(0, index, x)


def test_a_number_that_sizes_follow_from() -> None:
    """A cotangent has 2 * half + 1 rows: its own derivative is of that size, too."""
    torch.compiler.reset()
    compiled = torch.compile(scattered, backend="adjoint", dynamic=True)
    for half in (3, 4):
        found = []
        for function in (scattered, compiled):
            x = torch.linspace(-1, 1, 12).reshape(6, 2).requires_grad_()
            value = function(x, torch.arange(6) % 3, half)
            (slope,) = torch.autograd.grad(value.sin().sum(), x, create_graph=True)
            found.append(torch.autograd.grad(slope.square().sum(), x))
        torch.testing.assert_close(*found)
