from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from adjoint.capture import dynamo as capturing
from adjoint.forms.dynamo_graphs import DynamoGround
from adjoint.forms.form import Unwritable
from adjoint.torch_private.fake import FakeTensorMode
from adjoint.torch_private.modes import TorchFunctionMode


class Texts:
    """Compiles functions, and collects the texts of Dynamo's graphs instead of keeping captures."""

    def __init__(self) -> None:
        self.found: list[str | Unwritable] = []

    def captured(self, ground_of: Callable[[], DynamoGround], make: Callable[[], Any]) -> Any:
        try:
            self.found.append(ground_of().text)
        except Unwritable as error:
            self.found.append(error)
        return make()

    def backend(self, graph_module: fx.GraphModule, examples: Any) -> Any:
        capturing.capture_graph(graph_module, examples, kept=self)
        return graph_module.forward


def text_of(function: Callable[..., Any], *args: Any, dynamic: bool = False) -> str | Unwritable:
    torch.compiler.reset()
    texts = Texts()
    torch.compile(function, backend=texts.backend, dynamic=dynamic)(*args)
    (found,) = texts.found
    return found


def f(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x[..., 1:] * 2.0).sum(0)


def test_the_same_program_has_the_same_text() -> None:
    x = torch.randn(3, 4)
    text = "import torch\ndef f(x):\n    y = x[..., 1:] * 2.0\n    return y.sin().sum(0)\n"
    found: list[str | Unwritable] = []
    for blank, given in (("", x), ("\n\n", x), ("", x + 1)):
        space: dict[str, Any] = {}
        exec(compile(blank + text, "moved.py", "exec"), space)
        found.append(text_of(space["f"], given))
    # The data of inputs do not matter, nor where the source lies.
    assert found[0] == found[1] == found[2]
    assert "sin" in str(found[0])


@pytest.mark.parametrize(
    "change",
    {
        "constant": lambda x: torch.nn.functional.gelu(x[..., 1:] * 3.0).sum(0),
        "slice": lambda x: torch.nn.functional.gelu(x[..., 2:] * 2.0).sum(0),
        "function": lambda x: torch.nn.functional.silu(x[..., 1:] * 2.0).sum(0),
        "method": lambda x: torch.nn.functional.gelu(x[..., 1:] * 2.0).mean(0),
    }.items(),
    ids=lambda each: each[0],
)
def test_another_program_has_another_text(change: tuple[str, Callable[..., Any]]) -> None:
    x = torch.randn(3, 4)
    assert text_of(f, x) != text_of(change[1], x)


@pytest.mark.parametrize(
    "other",
    [
        torch.randn(3, 4).requires_grad_(),
        torch.randn(3, 4).double(),
        torch.randn(4, 3).t(),
        torch.randn(4, 4)[1:],
        torch.randn(3, 5),
        torch.randn(3, 4).requires_grad_() * 2,
        torch.nn.Parameter(torch.randn(3, 4), requires_grad=False),
    ],
    ids=["requires grad", "dtype", "strides", "view", "size", "history", "parameter"],
)
def test_another_input_is_another_text(other: Tensor) -> None:
    assert text_of(f, torch.randn(3, 4)) != text_of(f, other)


def test_sizes_are_symbols() -> None:
    texts = [text_of(f, torch.randn(n, n + 1), dynamic=True) for n in (3, 8)]
    assert texts[0] == texts[1]


def shared(x: Tensor, y: Tensor) -> Tensor:
    return x.sin() + y[0]


@torch.library.custom_op("adjoint_tests::of_the_user", mutates_args=())
def of_the_user(x: Tensor) -> Tensor:
    return x.clone()


@of_the_user.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def test_what_depends_on_other_code_has_no_text() -> None:
    x = torch.randn(3, 4)
    assert str(text_of(shared, x, x[1:])) == "inputs that share memory"
    assert isinstance(text_of(lambda x: of_the_user(x) * 2, x), Unwritable)

    def own(x: Tensor) -> Tensor:
        return x.sin()

    known: Any = torch.compiler.allow_in_graph(own)
    assert isinstance(text_of(lambda x: known(x) * 2, x), Unwritable)

    assert isinstance(text_of(f, x), str)


def test_a_function_mode_has_no_text() -> None:
    class Mode(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return function(*args, **(kwargs or {}))

    ground = DynamoGround(fx.symbolic_trace(lambda x: x.sin()), None, [])  # type: ignore[arg-type]
    with (
        Mode(),
        pytest.raises(Unwritable, match=r"inside a transform of torch\.func or a function mode"),
    ):
        _ = ground.text


class Own(Tensor):
    """A tensor subclass."""


def test_inputs_that_have_no_text() -> None:
    mode = FakeTensorMode()
    with mode:
        plain, conjugate = torch.ones(3), torch.ones(3, dtype=torch.complex64).conj()
    for example, fake, why in (
        (torch.ones(3).as_subclass(Own), plain, "an input that is a Own"),
        (torch.ones(3), conjugate, "a tensor that is not strided, or is lazily negated"),
    ):
        ground = DynamoGround(fx.symbolic_trace(lambda x: x.sin()), mode, [(example, fake, None)])
        with pytest.raises(Unwritable, match=why):
            _ = ground.text


class Closing(torch.nn.Module):
    """It adds a tensor that it holds."""

    def __init__(self) -> None:
        super().__init__()
        self.held = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.held


@pytest.mark.parametrize(
    ("module", "why"),
    [
        (Closing(), "a tensor that a graph closes over"),
        (torch.nn.Sequential(torch.nn.ReLU()), "a module that a graph calls"),
    ],
)
def test_what_a_graph_holds_has_no_text(module: torch.nn.Module, why: str) -> None:
    with pytest.raises(Unwritable, match=why):
        _ = DynamoGround(fx.symbolic_trace(module), FakeTensorMode(), []).text
