from __future__ import annotations

import copy
import functools
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.capture.direct import module_of
from adjoint.graph.descriptors import Argument, Buffer, Parameter
from tests.parity import Route, Row, Table, leaf, plain

Point = namedtuple("Point", ["x", "y"])

TABLE = Table()


@TABLE(lambda: ({"a": leaf(3), "b": [leaf(3), (plain(3), 2.5)]}, Point(leaf(3), None)))
def trees_in_and_out(tree: Any, point: Any) -> Any:
    total = tree["a"] * tree["b"][0] + tree["b"][1][0] * tree["b"][1][1]
    return OrderedDict(
        total=total, point=Point(point.x * 2, "label"), rest=[None, (3, total.sum())]
    )


@TABLE(lambda: (leaf(3), True, None, "mean", 3))
def constants_among_the_arguments(x: Tensor, flag: bool, none: None, how: str, power: int) -> Any:
    assert flag
    assert none is None
    return (x**power).mean() if how == "mean" else x


@TABLE(lambda: (leaf(3),))
def nothing_returned(x: Tensor) -> None:
    x * 2


class Filled(torch.autograd.Function):
    """Takes a size as it is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: torch.Size) -> Tensor:
        assert isinstance(size, torch.Size)
        return x.sum().expand(size) * size.numel()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent.sum().expand(3), None


@TABLE(lambda: (leaf(3), torch.Size([2, 4])))
def sizes_in_and_out(x: Tensor, size: torch.Size) -> Any:
    made: Tensor = Filled.apply(x, size)  # type: ignore[no-untyped-call]
    return x.shape, {"size": made.size()}, size, (2, 4), made


class Tied(nn.Module):
    """One parameter under two names, a buffer that counts, a module inside."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, dtype=torch.float64)
        self.second = nn.Linear(3, 3, dtype=torch.float64)
        self.second.weight = self.first.weight
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scratch", torch.zeros(3), persistent=False)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        self.count += 1
        return self.second(self.first(x).tanh()) * scale * self.count

    def method(self, x: Tensor) -> Any:
        return self.first(x)


TABLE(lambda: (leaf(2, 3),))(Tied())
TABLE(lambda: (leaf(4, 3),))(nn.BatchNorm1d(3, dtype=torch.float64))
TABLE(lambda: (leaf(4, 3),))(nn.BatchNorm1d(3, dtype=torch.float64).eval())


def name_of(row: Row) -> str:
    return getattr(row.function, "__name__", type(row.function).__name__)


@pytest.mark.parametrize("row", TABLE, ids=name_of)
def test_a_direct_capture_is_eagers(row: Row) -> None:
    row.check(Route.DIRECT)


def test_sizes_that_vary_stay_sizes() -> None:
    captured = adjoint.capture(lambda x: (x.shape, x * 2), plain(3, 4), dynamic=True)
    for shape in [(3, 4), (5, 2)]:
        size, _ = adjoint.run(captured, plain(*shape))
        assert isinstance(size, torch.Size)
        assert size == shape


def test_keyword_arguments() -> None:
    def program(x: Tensor, *, by: Tensor, twice: bool = False) -> Tensor:
        return x * by * (2 if twice else 1)

    x, y = leaf(3), leaf(3)
    captured = adjoint.capture(program, x, by=y, twice=True)
    assert captured.inputs == (Argument(0, "args[0]"), Argument(1, "kwargs['by']"))
    assert torch.equal(adjoint.run(captured, x, by=y, twice=True), program(x, by=y, twice=True))


@pytest.mark.parametrize(
    "callable_of",
    [
        lambda module: module,
        lambda module: module.forward,
        lambda module: module.method,
        lambda module: functools.partial(module, scale=3.0),
        lambda module: functools.partial(functools.partial(module), scale=3.0),
    ],
)
def test_callables_that_have_a_module(callable_of: Any) -> None:
    eager, compiled = Tied(), Tied()
    compiled.load_state_dict(copy.deepcopy(eager.state_dict()))
    x = leaf(2, 3)
    function = callable_of(compiled)
    assert module_of(function) is compiled
    captured = adjoint.capture(function, x)
    names = [each.name for each in captured.inputs if isinstance(each, Parameter | Buffer)]
    assert "first.weight" in names
    assert "second.weight" not in names  # it is the same parameter
    expected, actual = callable_of(eager)(x), adjoint.run(captured, x)
    torch.testing.assert_close(actual, expected)
    assert compiled.count == eager.count
    actual.sum().backward()
    assert compiled.first.weight.grad is not None


def test_a_function_has_no_module() -> None:
    assert module_of(lambda x: x) is None
    assert module_of([].append) is None


def test_called_otherwise_than_captured() -> None:
    captured = adjoint.capture(lambda x, y: x * y, plain(3), plain(3))
    with pytest.raises(TypeError, match="captured for arguments"):
        adjoint.run(captured, plain(3))


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((3.0,), {}), ((2.0,), {"flag": True}), ((2.0,), {"how": "other"})],
)
def test_constants_are_part_of_the_capture(args: Any, kwargs: Any) -> None:
    def program(x: Tensor, scale: float, flag: bool = False, how: str = "sum") -> Tensor:
        return x * scale

    x = plain(3)
    captured = adjoint.capture(program, x, 2.0, flag=False, how="sum")
    with pytest.raises((TypeError, ValueError), match="captured for"):
        adjoint.run(captured, x, *args, **{"flag": False, "how": "sum", **kwargs})


# Nothing is left behind ---------------------------------------------------------------------------


class Rebinds(Tied):
    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        y = self.first(x)
        match self.what:
            case "a buffer":
                self.scratch = y.detach()[0]
            case "a parameter":
                self.first.weight = nn.Parameter(self.first.weight.detach() * 2)
            case "an attribute":
                self.last = y
            case "an attribute of a part":
                self.first.last = y
            case "fails":
                self.seen = 3
                self.count += 1
                raise KeyError("the user's own")
            case "branches":
                self.count += 1
                return y if y.sum() > 0 else -y
            case "a number":
                self.seen = 3
            case _:
                raise ValueError(self.what)
        return y


def state_of(module: nn.Module) -> list[Any]:
    """What every module in `module` holds; the tensors by identity and version."""
    return [
        {
            key: [(name, id(t), t._version) for name, t in value.items() if t is not None]
            if key in ("_parameters", "_buffers")
            else (id(value), dict(value) if isinstance(value, dict) else value)
            for key, value in vars(part).items()
        }
        for part in module.modules()
    ]


@pytest.mark.parametrize(
    ("what", "error", "message"),
    [
        ("a buffer", adjoint.CaptureError, "assignment to attribute 'scratch'"),
        ("a parameter", adjoint.CaptureError, "assignment to attribute 'first.weight'"),
        ("an attribute", adjoint.CaptureError, "assignment to attribute 'last'"),
        ("an attribute of a part", adjoint.CaptureError, "assignment to attribute '(first.)?last'"),
        ("fails", KeyError, "the user's own"),
        ("branches", adjoint.CaptureError, "decides what the program does next"),
    ],
)
def test_a_failed_capture_leaves_the_module_as_it_was(
    what: str, error: type[Exception], message: str
) -> None:
    module, x = Rebinds(what), leaf(2, 3)
    before = state_of(module)
    with pytest.raises(error, match=message) as raised:
        adjoint.capture(module, x)
    if isinstance(raised.value, adjoint.CaptureError):
        assert raised.value.source is not None
        assert raised.value.source.file == __file__
    assert state_of(module) == before
    assert module.count == 0
    assert x.grad_fn is None


def test_a_capture_leaves_the_module_as_it_was() -> None:
    module = Rebinds("a number")
    before = state_of(module)
    adjoint.capture(module, leaf(2, 3))
    assert state_of(module) == before
