from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import adjoint
from adjoint.errors import CaptureError, ExportError, LoadError
from tests.exports import assert_as_eager, exported

D = torch.float64


def rand(*shape: int) -> torch.Tensor:
    return torch.rand(*shape, dtype=D)


class Model(nn.Module):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 4, dtype=D)
        self.first = nn.Linear(4, 8, dtype=D)
        self.norm = nn.LayerNorm(8, dtype=D)
        self.last = nn.Linear(8, 1, dtype=D)
        self.register_buffer("scale", torch.tensor(0.5, dtype=D))

    def forward(self, x: torch.Tensor, kinds: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.first(x + self.embed(kinds))).tanh()
        result: torch.Tensor = self.last(y).sum() * self.scale
        return result


WEIGHT = rand(4, 4)

CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...], int]] = {
    "pointwise and products": (lambda x, w: torch.tanh(x @ w).sin(), (rand(5, 4), rand(4, 3)), 2),
    "one library call": (lambda x: x @ x, (rand(4, 4),), 2),
    "nothing to compute": (lambda x: x, (rand(3),), 1),
    "several results": (lambda x, y: (x.sin(), {"b": [x * y, y.sum()]}), (rand(3), rand(3)), 2),
    "nested arguments": (
        lambda p: p["x"] * p["list"][0].sum() + p["list"][1][0],
        ({"x": rand(3), "list": [rand(2), (rand(1),)]},),
        2,
    ),
    "a closure": (lambda x: (x @ WEIGHT).relu(), (rand(3, 4),), 1),
    "a literal": (lambda x: x * torch.tensor([1.0, 2.0, 3.0], dtype=D), (rand(3),), 1),
    "indices": (
        lambda x, i: torch.zeros(4, 3, dtype=D).index_add(0, i, x.exp()),
        (rand(6, 3), torch.tensor([0, 1, 2, 3, 1, 0])),
        2,
    ),
    "no derivative": (lambda x: (x > 0.5).sum(), (rand(5),), 1),
    "sort and softmax": (lambda x: x.sort(-1).values.softmax(-1).log().sum(-1), (rand(4, 6),), 2),
    "convolution": (
        lambda x, w: torch.nn.functional.conv2d(x, w).relu().mean(),
        (rand(2, 3, 6, 6), rand(4, 3, 3, 3)),
        1,
    ),
    "linear algebra": (
        lambda x: torch.linalg.solve(x @ x.t() + 5 * torch.eye(4, dtype=D), x).sum(),
        (rand(4, 4),),
        2,
    ),
    "a derivative inside": (
        lambda x: torch.autograd.grad((x**3).sum(), x, create_graph=True)[0].sin(),
        (rand(4),),
        1,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_derivatives_are_those_of_eager(name: str, tmp_path: Path) -> None:
    function, args, orders = CASES[name]
    if name == "nested arguments":
        loaded = exported(function, args, tmp_path, orders=orders)
        flat = (args[0]["x"], args[0]["list"][0], args[0]["list"][1][0])

        def packed(f: Callable[..., Any]) -> Callable[..., Any]:
            return lambda x, a, b: f({"x": x, "list": [a, (b,)]})

        assert_as_eager(packed(function), packed(loaded), flat, orders)
        return
    loaded = exported(function, args, tmp_path, orders=orders)
    assert_as_eager(function, loaded, args, orders)


def test_a_module_with_parameters_and_buffers(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    args = (rand(6, 4), torch.tensor([0, 1, 2, 3, 4, 0]))
    for where in ("inside", "beside"):
        loaded = exported(model, args, tmp_path, orders=2, parameters=where)
        assert_as_eager(model, loaded, args, 2)
        assert not any(each.requires_grad for each in loaded.state.values())


def test_parameters_can_be_differentiated_by(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    args = (rand(6, 4), torch.tensor([0, 1, 2, 3, 4, 0]))
    loaded = exported(model, args, tmp_path, wrt=["x", "first.weight", "embed.weight"])
    loaded.state["first.weight"].requires_grad_()
    loaded.state["embed.weight"].requires_grad_()
    loaded(*args).backward()
    model(*args).backward()
    for name in ("first.weight", "embed.weight"):
        expected = model.get_parameter(name).grad
        torch.testing.assert_close(loaded.state[name].grad, expected)
    loaded.state["last.weight"].requires_grad_()
    with pytest.raises(LoadError, match=r"last\.weight requires grad"):
        loaded(*args)


def test_tensors_beside_are_those_that_were_exported(tmp_path: Path) -> None:
    path = tmp_path / "model.adjoint"
    args = (rand(6, 4), torch.tensor([0, 1, 2, 3, 4, 0]))
    adjoint.export(Model(), args, path, parameters="beside")
    beside = tmp_path / "model.adjoint.safetensors"
    data = bytearray(beside.read_bytes())
    data[-1] ^= 1
    beside.write_bytes(bytes(data))
    with pytest.raises(LoadError, match="its digest is another"):
        adjoint.load(path)
    beside.unlink()
    with pytest.raises(LoadError, match="cannot be read"):
        adjoint.load(path)


def pairs(x: torch.Tensor, edges: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    vectors = x[edges[1]] - x[edges[0]]
    messages = torch.tanh((vectors * vectors).sum(-1, keepdim=True) @ w)
    return torch.zeros(x.shape[0], w.shape[1], dtype=D).index_add(0, edges[0], messages).sum(0)


def test_sizes_vary(tmp_path: Path) -> None:
    def arguments(atoms: int, edges: int) -> tuple[torch.Tensor, ...]:
        generator = torch.Generator().manual_seed(atoms + edges)
        index = torch.randint(max(atoms, 1), (2, edges), generator=generator)
        return torch.rand(atoms, 3, dtype=D, generator=generator), index, WEIGHT[:1]

    loaded = exported(
        pairs, arguments(5, 12), tmp_path, orders=2, wrt=["x"], dynamic={"x": [0], "edges": [1]}
    )
    for atoms, edges in ((5, 12), (7, 30), (2, 1), (3, 0), (200, 3000), (5, 12)):
        assert_as_eager(pairs, loaded, arguments(atoms, edges), 2, wrt=(0,))


def test_all_sizes_vary(tmp_path: Path) -> None:
    loaded = exported(
        lambda x, y: (x @ y).softmax(-1), (rand(3, 4), rand(4, 5)), tmp_path, dynamic=True
    )
    for a, b, c in ((3, 4, 5), (1, 1, 1), (7, 2, 9)):
        assert_as_eager(lambda x, y: (x @ y).softmax(-1), loaded, (rand(a, b), rand(b, c)), 1)


def test_random_numbers_are_those_of_eager(tmp_path: Path) -> None:
    def dropped(x: torch.Tensor) -> torch.Tensor:
        return torch.dropout(x, 0.5, True) * 2

    x = rand(50)
    loaded = exported(dropped, (x,), tmp_path)
    torch.manual_seed(3)
    expected = dropped(x)
    torch.manual_seed(3)
    torch.testing.assert_close(loaded(x), expected)


def test_random_numbers_of_kernels(tmp_path: Path) -> None:
    x = rand(2000)
    loaded = exported(
        lambda x: torch.nn.functional.dropout(x, 0.5), (x,), tmp_path, options={"eager_rng": False}
    )
    torch.manual_seed(3)
    first, second = loaded(x), loaded(x)
    assert not torch.equal(first, second)
    assert 0.4 < (first == 0).double().mean() < 0.6
    torch.manual_seed(3)
    assert torch.equal(loaded(x), first)


def custom(x: torch.Tensor) -> torch.Tensor:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            result: torch.Tensor = 3 * x * g
            return result

    result: torch.Tensor = Square.apply(x).sum()  # type: ignore[no-untyped-call]
    return result


def test_custom_functions_are_part_of_it(tmp_path: Path) -> None:
    loaded = exported(custom, (rand(4),), tmp_path, orders=2)
    assert_as_eager(custom, loaded, (rand(4),), 2)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"cpus": ("pentium",)}, "choose some of x86-64"),
        ({"cpus": ()}, "choose some of"),
        ({"orders": -1}, "orders=-1"),
        ({"wrt": ["z"]}, "wrt names 'z'; choose from: x"),
        ({"wrt": "x"}, "sequence of names"),
        ({"dynamic": {"y": [0]}}, "dynamic has 'y', which is no tensor"),
        ({"dynamic": {"x": [3]}}, "dynamic has axis 3 of x, which has 1 axes"),
        ({"dynamic": {"x": {0: (5, 9)}}}, "outside of its bounds"),
        ({"parameters": "elsewhere"}, "choose 'inside' or 'beside'"),
        ({"options": {"target": "loops"}}, "an exported program is native: not target='loops'"),
        ({"gpus": ("9.0",)}, "and no argument or parameter is on a GPU"),
    ],
)
def test_what_has_no_sense_is_refused(options: Any, why: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with pytest.raises(ExportError, match=why):
        adjoint.export(lambda x: x.sin(), (rand(3),), path, **options)
    assert not path.exists()


class Strange:
    pass


COMPLEX = torch.ones(3, dtype=torch.complex128)
META = torch.ones(3, device="meta")


@pytest.mark.parametrize(
    ("function", "args", "why"),
    [
        (lambda x: x.nonzero(), (rand(3),), "has sizes that depend on data"),
        (lambda x: x if x.sum() > 0 else -x, (rand(3),), "decides what the program does next"),
        (lambda x, y: x, (rand(3), Strange()), "arguments or results have no form in a file"),
        (
            lambda x: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
            (rand(3),),
            "\n  has no form in a file",
        ),
        (lambda x: x * COMPLEX, (rand(3),), "a parameter has no form in a file"),
        (torch.sin, (META,), "for the CPU or for one NVIDIA GPU, not meta"),
        (
            lambda x: (x.sin(), torch.ones_like(x, device="meta")),
            (rand(3),),
            r"and a tensor is on meta: move the module and its arguments with .to\('cpu'\)",
        ),
    ],
)
def test_what_has_no_form_is_refused(
    function: Callable[..., Any], args: tuple[Any, ...], why: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    with pytest.raises((ExportError, CaptureError), match=why) as error:
        adjoint.export(function, args, path)
    assert not path.exists()
    if "depend" in why or "decides" in why or why.startswith("\n"):
        assert __file__ in str(error.value)


def test_integers_have_no_derivatives(tmp_path: Path) -> None:
    with pytest.raises(ExportError, match=r"wrt has a tensor of torch\.int64, and only floating"):
        adjoint.export(lambda n: n.abs(), (torch.arange(3),), tmp_path / "file", wrt=["n"])


def test_a_size_that_the_program_fixes_does_not_vary(tmp_path: Path) -> None:
    x = rand(5, 3)
    with pytest.raises(ExportError, match=r"x.shape\[0\] is to vary, and the program fixes it"):
        adjoint.export(lambda x: x / len(x), (x,), tmp_path / "file", dynamic={"x": [0]})
