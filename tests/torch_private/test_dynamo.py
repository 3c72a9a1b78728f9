from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo import convert_frame
from torch._dynamo.utils import get_metrics_context
from torch.fx.experimental import _config as shape_config

from adjoint.torch_private import dynamo
from adjoint.torch_private.dynamo import dict_version


def test_graphs_are_counted_once() -> None:
    torch.compiler.reset()
    compiled = torch.compile(torch.sin, backend="eager")
    before = dynamo.graphs_compiled()
    for _ in range(2):
        compiled(torch.ones(3))
    assert dynamo.graphs_compiled() == before + 1


def test_shapes_are_general_inside_only() -> None:
    before = (shape_config.backed_size_oblivious, shape_config.use_duck_shape)
    with dynamo.general_shapes():
        assert shape_config.backed_size_oblivious
        assert not shape_config.use_duck_shape
    assert (shape_config.backed_size_oblivious, shape_config.use_duck_shape) == before


def test_the_code_of_a_function_that_is_gone_is_freed() -> None:
    def compiled(text: str) -> weakref.ReferenceType[Any]:
        function: Any = eval(text)
        run: Any = torch.compile(function, backend="adjoint")
        run(torch.rand(3))
        return weakref.ref(function.__code__)

    code = compiled("lambda x: x.sin() * 2")
    assert not get_metrics_context()._edits
    torch._dynamo.reset()
    for _ in range(3):
        gc.collect()
    assert code() is None


def test_frames_are_adapted_once() -> None:
    import adjoint.backend  # noqa: F401  (adapts them)

    adapted = convert_frame._compile
    dynamo.adapt_frames(
        "adjoint", lambda error: True, ValueError, lambda options, code: nullcontext()
    )
    assert convert_frame._compile is adapted


def doubling(without_grad: bool) -> torch.fx.GraphModule:
    graph = torch.fx.Graph()
    cotangent = graph.placeholder("cotangent")
    if without_grad:
        graph.call_function(torch._C._set_grad_enabled, (False,))
    doubled = graph.call_function(torch.mul, (cotangent, 2))
    if without_grad:
        graph.call_function(torch._C._set_grad_enabled, (True,))
    graph.output((doubled,))
    return torch.fx.GraphModule({}, graph)


@pytest.mark.parametrize("without_grad", [False, True])
def test_a_backward_can_be_differentiated(without_grad: bool) -> None:
    backward = dynamo.differentiable_backward(doubling(without_grad))
    cotangent = torch.ones(3, requires_grad=True)
    (result,) = backward(cotangent)
    assert result.requires_grad
    assert torch.equal(result, torch.full((3,), 2.0))


class Holder:
    """An object whose attributes are in a dictionary."""

    def __init__(self) -> None:
        self.value: Any = 1


def store(holder: Any) -> None:
    holder.value = object()


WRITES: list[Callable[[dict[Any, Any]], Any]] = [
    lambda held: held.update(value=2),
    lambda held: held.update(other=2),
    lambda held: held.pop("value"),
    lambda held: held.setdefault("other", 3),
    lambda held: held.__ior__({"value": 3}),
    lambda held: held.__delitem__("value"),
    lambda held: held.clear(),
]


@pytest.mark.parametrize("write", WRITES)
def test_a_dictionary_that_is_written_to_has_another_version(
    write: Callable[[dict[Any, Any]], Any],
) -> None:
    held = {"value": 1, "last": 1}
    before = dict_version(held)
    assert held.get("value") == held["last"]
    assert dict_version(held) == before
    write(held)
    assert dict_version(held) != before


@pytest.mark.parametrize("holder", [Holder(), torch.nn.Linear(2, 2)])
def test_an_attribute_is_written_to_the_dictionary_of_its_object(holder: Any) -> None:
    # A store is specialised by Python once it has been done often.
    for _ in range(100):
        before = dict_version(vars(holder))
        store(holder)
        assert dict_version(vars(holder)) != before


def test_what_is_compiled_is_alone() -> None:
    with torch.autocast("cpu", torch.bfloat16), torch.device("meta"), dynamo.compiling():
        assert not torch.is_autocast_enabled("cpu")
        assert torch.ones(3).device.type == "cpu"


def test_sizes_are_computed_by_proxies_while_compiling() -> None:
    tracer = torch.fx.Tracer()
    tracer.graph = torch.fx.Graph(tracer_cls=torch.fx.Tracer)
    proxy = torch.fx.Proxy(tracer.graph.placeholder("size"), tracer)
    with torch.device("meta"), dynamo.compiling():
        assert isinstance(torch.sym_min(proxy, 3), torch.fx.Proxy)
    with torch.device("meta"):
        assert torch.ones(3).device.type == "meta"


def test_an_error_of_torchs_for_general_shapes_is_none_of_the_users() -> None:
    """Torch's formula for parts of a symbolic size assumes that there is one, by an index."""

    def parts(x: Tensor) -> list[Tensor]:
        return [part.sum() for part in x.split(2)]

    torch._dynamo.reset()
    compiled = torch.compile(parts, backend="adjoint", dynamic=True)
    for count in (5, 0, 6, 1, 0):
        x = torch.randn(count, 2)
        torch.testing.assert_close(compiled(x), parts(x))
