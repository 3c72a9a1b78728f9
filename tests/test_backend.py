from __future__ import annotations

import subprocess
import sys
import warnings
from typing import Any
from unittest import mock

import pytest
import torch
import torch._dynamo
from torch import Tensor, nn

import adjoint
from adjoint import backend
from adjoint.backend import compile_graph
from adjoint.errors import CaptureError
from adjoint.torch_private.fake import FakeTensor, FakeTensorMode
from tests.parity import leaf

BY_NAME = """
import sys
import torch
assert "adjoint" not in sys.modules
compiled = torch.compile(lambda x: x.sin() + 1, backend="adjoint", fullgraph=True)
x = torch.arange(3.0, requires_grad=True)
assert torch.equal(compiled(x), x.sin() + 1)
assert "adjoint" in sys.modules
"""


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def twice(x: Tensor) -> Tensor:
    return x * 2


def fails(*args: Any, **kwargs: Any) -> Any:
    raise CaptureError("a construct", "a reason", "a way out")


def test_torch_finds_the_backend_by_its_name() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BY_NAME], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "adjoint" in torch.compiler.list_backends()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"fullgraph": True},
        {"dynamic": True},
        {"dynamic": False},
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune"},
        {"target": "reference"},
        {"unsupported": "eager", "fullgraph": True},
    ],
)
def test_settings(settings: dict[str, Any]) -> None:
    x = leaf(3)
    assert torch.equal(adjoint.compile(twice, **settings)(x), twice(x))


def test_as_a_decorator() -> None:
    @adjoint.compile
    def bare(x: Tensor) -> Tensor:
        return x * 2

    @adjoint.compile(fullgraph=True, unsupported="eager")
    def with_options(x: Tensor) -> Tensor:
        return x * 2

    x = leaf(3)
    assert torch.equal(bare(x), x * 2)
    assert torch.equal(with_options(x), x * 2)


def test_a_module() -> None:
    module = torch.nn.Linear(3, 3)
    x = torch.randn(2, 3)
    torch.testing.assert_close(adjoint.compile(module)(x), module(x))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"taget": "reference"}, "did you mean 'target'"),
        ({"target": "gpu"}, "target='gpu' is not legal"),
    ],
)
def test_a_wrong_option_is_an_error_at_once(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adjoint.compile(twice, **options)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"options": {"target": "gpu"}}, "target='gpu' is not legal"),
        ({"mode": "fastest"}, "unknown mode 'fastest'; choose from: default, reduce-overhead"),
    ],
)
def test_torch_compile_reports_a_wrong_setting(settings: dict[str, Any], message: str) -> None:
    compiled = torch.compile(twice, backend="adjoint", **settings)
    with pytest.raises(Exception, match=message):
        compiled(leaf(3))


def test_fullgraph_is_dynamos() -> None:
    def breaks(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    x = leaf(3)
    assert torch.equal(adjoint.compile(breaks)(x), breaks(x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported):
        adjoint.compile(breaks, fullgraph=True)(x)


def test_a_capture_error_reaches_the_user_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "compile_graph", fails)
    with pytest.raises(CaptureError, match="a construct") as raised:
        adjoint.compile(twice)(leaf(3))
    assert raised.value.remedy == "a way out"


def test_a_failure_of_the_compiler_is_a_capture_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*args: Any, **kwargs: Any) -> Any:
        raise KeyError("ours")

    monkeypatch.setattr(backend, "compile_graph", breaks)
    with pytest.raises(CaptureError, match="KeyError: 'ours'") as raised:
        adjoint.compile(twice)(leaf(3))
    assert isinstance(raised.value.__cause__, KeyError)
    assert raised.value.source is not None
    assert raised.value.source.text == "return x * 2"
    monkeypatch.undo()
    x = leaf(3)
    assert torch.equal(adjoint.compile(twice)(x), twice(x))


def test_an_unsupported_function_runs_in_eager_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(backend, "compile_graph", fails)
    compiled, x = adjoint.compile(twice, unsupported="eager"), leaf(3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            assert torch.equal(compiled(x), twice(x))
    fallbacks = [w for w in caught if issubclass(w.category, adjoint.FallbackWarning)]
    assert len(fallbacks) == 1
    assert "a construct" in str(fallbacks[0].message)


def test_other_backends_are_left_alone() -> None:
    x = leaf(3)
    assert torch.equal(torch.compile(twice, backend="eager", dynamic=True)(x), twice(x))


@pytest.mark.parametrize(
    ("mode", "cuda_graphs"),
    [
        (None, True),
        ("default", True),
        ("reduce-overhead", True),
        ("max-autotune", True),
        ("max-autotune-no-cudagraphs", False),
    ],
)
def test_modes_are_options(mode: str | None, cuda_graphs: bool) -> None:
    with mock.patch.object(backend, "compile_graph", wraps=compile_graph) as compiled:
        adjoint.compile(twice, mode=mode)(leaf(3))
    options = compiled.call_args.args[2]
    assert options.cuda_graphs is cuda_graphs


def test_a_mode_beside_options() -> None:
    with mock.patch.object(backend, "compile_graph", wraps=compile_graph) as compiled:
        adjoint.compile(twice, mode="reduce-overhead", target="reference")(leaf(3))
    assert compiled.call_args.args[2] == adjoint.Options(target="reference", cuda_graphs=True)
    message = "mode 'max-autotune-no-cudagraphs' means cuda_graphs=False, and options say True"
    with pytest.raises(ValueError, match=message):
        adjoint.compile(twice, mode="max-autotune-no-cudagraphs", cuda_graphs=True)


def test_fakes_of_the_caller_run_op_by_op() -> None:
    """Estimates of memory run a model on them, in their mode or outside of it."""
    mode = FakeTensorMode()
    compiled, x = adjoint.compile(twice), leaf(3)
    assert torch.equal(compiled(x), twice(x))
    fake = mode.from_tensor(x)
    result = compiled(fake)
    assert isinstance(result, FakeTensor)
    assert result.fake_mode is mode
    assert result.shape == (3,)
    assert torch.equal(compiled(x), twice(x))
    with mode:
        layer = nn.Linear(3, 2)
        for rows in (4, 5):  # Compiled in the mode, too.
            adjoint.compile(layer)(torch.ones(rows, 3)).sum().backward()
    assert isinstance(layer.weight.grad, FakeTensor)
