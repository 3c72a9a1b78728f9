from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch

from adjoint import targets
from adjoint.options import Options
from adjoint.runtime.cpu import machines
from adjoint.target import REFERENCE, Feature
from adjoint.targets import target_of, target_on
from tests.lowering import graph_of

X = torch.rand(4)
GRAPH = graph_of(lambda x: x.sin() + 1, [X])


def native(**options: Any) -> Options:
    return Options(target="cpu", **options)


def test_the_target_is_where_the_tensors_lie() -> None:
    target = target_of(GRAPH, native())
    assert (target.name, target.device, target.machine) == ("cpu", X.device, machines.host())


def test_the_reference_is_asked_for_or_all_that_is_left() -> None:
    assert target_of(GRAPH, Options(target="reference")) is REFERENCE
    nothing = graph_of(lambda x: [x], [torch.zeros(2, dtype=torch.complex64)])
    assert target_of(nothing, native()) is REFERENCE


def test_the_machine_is_asked_for_its_blas() -> None:
    for has in (True, False):
        with mock.patch.object(targets, "has_blas", return_value=has):
            assert (Feature.BLAS in target_of(GRAPH, native()).features) == has


@pytest.mark.parametrize(("eager_rng", "draws"), [(None, False), (True, False), (False, True)])
def test_on_a_processor_kernels_draw_if_asked(eager_rng: bool | None, draws: bool) -> None:
    assert target_of(GRAPH, native(eager_rng=eager_rng)).draws_in_kernels == draws


@pytest.mark.parametrize(("eager_rng", "draws"), [(None, True), (True, False), (False, True)])
@pytest.mark.parametrize("cuda_graphs", [True, False])
def test_on_a_gpu_options_say_what_is_drawn_and_replayed(
    eager_rng: bool | None, draws: bool, cuda_graphs: bool
) -> None:
    device = torch.device("cuda", 0)
    with mock.patch.object(torch.cuda, "get_device_capability", return_value=(8, 6)):
        target = target_on(device, native(eager_rng=eager_rng, cuda_graphs=cuda_graphs))
    assert (target.device, target.draws_in_kernels) == (device, draws)
    assert target.captures_cuda_graphs == cuda_graphs
    assert target.machine is not None
    assert target.machine.cpu == "sm_86"
