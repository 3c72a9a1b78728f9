from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor

from adjoint import backend
from adjoint.backend import compile_graph
from adjoint.torch_private import dynamo_inputs


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("L['x']", None),
        ("L['self']._parameters['weight']", "weight"),
        ("L['self']._modules['layers']._modules['0']._buffers['mean']", "layers.0.mean"),
        ("G['model']._modules['a']._parameters['b']", "model.a.b"),
        ("L['layers'][1]._parameters['b']", "layers[1].b"),
        ("L['self'].held[0].layer._modules['a']._buffers['b']", "held[0].layer.a.b"),
    ],
)
def test_names_of_parameters(source: str, name: str | None) -> None:
    assert dynamo_inputs.module_path(source) == name


def test_there_are_no_fakes_outside_of_dynamo() -> None:
    graph_module = torch.fx.symbolic_trace(torch.nn.Identity())
    assert dynamo_inputs.fresh_fakes(graph_module, [torch.ones(3)]) == (None, [])


def test_where_an_input_comes_from() -> None:
    found: list[str] = []

    def backend(graph_module: torch.fx.GraphModule, examples: Any) -> Any:
        found.extend(
            map(dynamo_inputs.source_name, graph_module.graph.find_nodes(op="placeholder"))
        )
        mode, fakes = dynamo_inputs.fresh_fakes(graph_module, examples)
        assert mode is not None
        assert [fake.shape for fake in fakes] == [example.shape for example in examples]
        assert all(fake._version == 0 for fake in fakes)
        return graph_module.forward

    torch._dynamo.reset()
    torch.compile(lambda x, y: x.add_(y["a"]), backend=backend)(torch.ones(3), {"a": torch.ones(3)})
    assert found == ["L['x']", "L['y']['a']"]


def _line(size: int) -> torch.Tensor:
    return torch.arange(float(size))


def _square(size: int) -> torch.Tensor:
    return torch.arange(float(size * size)).reshape(size, size) * 1


# Inputs that share memory, of a size.
SHARED: dict[str, Callable[[int], tuple[torch.Tensor, ...]]] = {
    "overlap": lambda n: (lambda a: (a[: n - 2], a[2:]))(_line(n)),
    "gaps": lambda n: (lambda a: (a[::2], a[1::2]))(_line(n)),
    "base_first": lambda n: (lambda b: (b, b[1]))(_square(n)),
    "base_last": lambda n: (lambda b: (b[1], b))(_square(n)),
    "three": lambda n: (lambda b: (b.t()[0], b[1:]))(_square(n)),
    "grown": lambda n: (lambda b: (b, b[1]))(_square(n).requires_grad_() * 1),
    "separate": lambda n: (_line(n), _line(n) + 1),
}


@pytest.mark.parametrize(
    ("writes", "dynamic"),
    [
        (True, None),
        pytest.param(True, True, marks=pytest.mark.slow),
        pytest.param(False, None, marks=pytest.mark.slow),
        pytest.param(False, True, marks=pytest.mark.slow),
    ],
)
def test_inputs_that_share_memory_in_one_way_after_another(
    writes: bool, dynamic: bool | None
) -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if writes:
            x.mul_(2)
            y.add_(1)
        return x.sum() * y, x[:1]

    torch._dynamo.reset()
    compiled = torch.compile(program, backend="adjoint", dynamic=dynamic, fullgraph=True)
    for name, make in SHARED.items():
        for size in (6, 5):
            theirs, mine = make(size), make(size)
            expected, actual = program(*theirs), compiled(*mine)
            for want, got in zip((*expected, *theirs), (*actual, *mine), strict=True):
                assert torch.equal(want, got), (name, size)
                assert want.requires_grad == got.requires_grad, (name, size)


def raised(x: Tensor, power: float) -> Any:
    return x * power**2.0 * (power + 1) ** power


def cut(x: Tensor, count: Tensor) -> Tensor:
    kept = x[: count.item()] ** 2
    count.add_(1)
    return kept


@pytest.mark.parametrize(
    ("function", "numbers"),
    [(raised, (6.0, 7.5, 0.5)), (cut, (torch.tensor(2), torch.tensor(4), torch.tensor(3)))],
)
def test_guards_on_a_number_that_an_input_holds(
    function: Callable[..., Tensor], numbers: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    graphs: list[Any] = []

    def compile_and_count(*given: Any) -> Any:
        graphs.append(compile_graph(*given))
        return graphs[-1]

    monkeypatch.setattr(backend, "compile_graph", compile_and_count)
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="adjoint", dynamic=True)
    settings: dict[str, Any] = {"capture_scalar_outputs": True, "suppress_errors": False}
    with torch._dynamo.config.patch(settings):
        for number in numbers:
            x = torch.randn(5, dtype=torch.float64, requires_grad=True)
            results = []
            for program in (compiled, function):
                given = number.clone() if isinstance(number, Tensor) else number
                result = program(x, given)
                (grad,) = torch.autograd.grad(result.sum(), x)
                results.append((result, grad, given))
            torch.testing.assert_close(*results)
    assert len(graphs) == 1
