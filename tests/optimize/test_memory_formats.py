from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint.graph.metadata import computes_tensor, tensor_of
from adjoint.observing import Sighting
from adjoint.optimize import memory_formats
from adjoint.optimize.memory_formats import choose_memory_format, has_adjacent_channels
from adjoint.torch_private.operators import OpOverload
from tests.lowering import graph_of

aten = torch.ops.aten


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the CPU's library, and any dtype, count as one that converts memory formats."""
    monkeypatch.setattr(memory_formats, "converts_formats", lambda images: True)


def formats_of(function: Callable[..., object], *inputs: Tensor) -> list[tuple[str, bool]]:
    """Each operator on images after the pass, and whether its result has adjacent channels."""
    made = choose_memory_format(graph_of(function, list(inputs)))
    return [
        (node.target._opname, has_adjacent_channels(value))
        for node in made.graph.nodes
        if node.op == "call_function"
        and computes_tensor(node)
        and (value := tensor_of(node)).dim() == 4
        and isinstance(node.target, OpOverload)
    ]


IMAGES, WEIGHTS = torch.randn(2, 3, 8, 8), torch.randn(80, 3, 3, 3)
SECOND = torch.randn(80, 80, 3, 3)


def convolution(x: Tensor, w: Tensor) -> Tensor:
    return torch.nn.functional.conv2d(x, w, padding=1)


@pytest.mark.usefixtures("everywhere")
class TestPass:
    def test_images_are_converted_once(self) -> None:
        def network(x: Tensor, v: Tensor, w: Tensor) -> Tensor:
            return convolution(convolution(x, v).relu(), w).sum()

        assert formats_of(network, IMAGES, WEIGHTS, SECOND) == [
            ("clone", True),
            ("clone", True),
            ("convolution", True),
            ("relu", True),
            ("clone", True),
            ("convolution", True),
        ]

    def test_a_result_of_the_program_keeps_its_strides(self) -> None:
        found = formats_of(lambda x, w: [convolution(x, w).relu()], IMAGES, WEIGHTS)
        assert found[-2:] == [("relu", True), ("clone", False)]

    def test_a_view_that_the_format_does_not_allow_is_one_of_a_copy(self) -> None:
        def network(x: Tensor, w: Tensor) -> Tensor:
            return convolution(x, w).relu().view(2, -1) * 2

        assert formats_of(network, IMAGES, WEIGHTS)[-2:] == [("relu", True), ("clone", False)]

    def test_what_reads_strides_reads_those_of_before(self) -> None:
        def network(x: Tensor, w: Tensor) -> Tensor:
            return convolution(x, w).as_strided((2, 2), (640, 1), 3) + 1

        assert formats_of(network, IMAGES, WEIGHTS)[-1] == ("clone", False)

    def test_draws_are_those_of_the_program(self) -> None:
        def network(x: Tensor, w: Tensor) -> Tensor:
            dropped: Tensor = aten.native_dropout(convolution(x, w), 0.5, True)[0]
            return dropped * 2

        assert ("clone", False) in formats_of(network, IMAGES, WEIGHTS)

    @pytest.mark.parametrize(
        ("images", "weights", "groups"),
        [
            (IMAGES, torch.randn(64, 3, 3, 3), 1),
            (torch.randn(2, 128, 8, 8), torch.randn(128, 64, 3, 3), 2),
        ],
        ids=["few-channels", "groups"],
    )
    def test_where_it_does_not_pay_nothing_changes(
        self, images: Tensor, weights: Tensor, groups: int
    ) -> None:
        def network(x: Tensor, w: Tensor) -> Tensor:
            return torch.nn.functional.conv2d(x, w, groups=groups).sum()

        graph = graph_of(network, [images, weights])
        assert choose_memory_format(graph) is graph

    def test_depthwise_convolutions_are_converted(self) -> None:
        def network(x: Tensor, w: Tensor) -> Tensor:
            return torch.nn.functional.conv2d(x, w, groups=128).sum()

        found = formats_of(network, torch.randn(2, 128, 8, 8), torch.randn(128, 1, 3, 3))
        assert ("convolution", True) in found


def test_other_devices_and_dtypes_are_left_alone() -> None:
    for dtype in (torch.float32, torch.bfloat16):
        inputs = [IMAGES.to(dtype), WEIGHTS.to(dtype)]
        graph = graph_of(lambda x, w: convolution(x, w).sum(), inputs)
        assert choose_memory_format(graph) is graph


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.second = nn.Conv2d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.nn.functional.silu(x + self.second(self.norm(self.first(x)).tanh()))


def network() -> nn.Module:
    torch.manual_seed(0)
    stem = nn.Conv2d(3, 72, 3, stride=2)
    head = (nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(288, 4))
    layers = (stem, nn.GELU(), Residual(72), nn.MaxPool2d(2), *head)
    return nn.Sequential(*layers).double()


def strides_that_matter(tensor: Tensor) -> list[int]:
    return [step for size, step in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dynamic", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_values_derivatives_and_statistics_are_eagers(dynamic: bool) -> None:
    eager, ours = network(), network()
    seen: list[str] = []

    def observer(sighting: Sighting) -> None:
        seen.append(sighting.stage)

    def backend(graph: torch.fx.GraphModule, inputs: list[Tensor]) -> object:
        return adjoint.backend.adjoint(graph, inputs, observer=observer)

    compiled = torch.compile(ours, backend=backend, dynamic=dynamic)
    for size in (16, 20) if dynamic else (16,):
        found = []
        for module, call in ((eager, eager), (ours, compiled)):
            torch.manual_seed(size)
            x = torch.randn(2, 3, size, size, dtype=torch.float64, requires_grad=True)
            module.zero_grad()
            y = call(x)
            (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            (slope.square().sum() + y.sum()).backward()
            gradients = [p.grad for p in module.parameters()]
            found.append([y, slope, x.grad, *gradients, *module.buffers()])
        torch.testing.assert_close(found[1], found[0], rtol=1e-9, atol=1e-11)
        assert [strides_that_matter(t) for t in found[1]] == [
            strides_that_matter(t) for t in found[0]
        ]
    assert "choose-memory-format" in seen
