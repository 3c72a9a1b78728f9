from __future__ import annotations

import dataclasses
from typing import Any, get_args, get_type_hints
from unittest import mock

import pytest
import torch

import adjoint
from adjoint import targets
from adjoint.options import Options
from adjoint.runtime.cpu import machines
from adjoint.runtime.loops import LoopProgram
from adjoint.target import REFERENCE, Feature, LoopMapping, loops_target
from adjoint.targets import target_of, target_on
from tests.lowering import graph_of, launches, lower, native_program

X = torch.rand(4)
GRAPH = graph_of(lambda x: x.sin() + 1, [X])


def native(**options: Any) -> Options:
    return Options(target="native", **options)


def test_the_target_is_where_the_tensors_lie() -> None:
    target = target_of(GRAPH, native())
    assert (target.name, target.device, target.machine) == ("cpu", X.device, machines.host())


def test_the_reference_is_asked_for_or_all_that_is_left() -> None:
    assert target_of(GRAPH, Options(target="reference")) is REFERENCE
    nothing = graph_of(lambda x: [x], [torch.zeros(2, dtype=torch.complex64)])
    assert target_of(nothing, native()) is REFERENCE


@pytest.mark.parametrize("name", get_args(get_type_hints(Options)["target"]))
def test_every_target_runs_what_eager_computes(name: Any) -> None:
    """What the recipe for a target in CONTRIBUTING has to end with."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.softmax(-1) * x.sin()).sum()

    x = torch.rand(3, 4, requires_grad=True)
    found = []
    for run in (adjoint.compile(function, target=name), function):
        (first,) = torch.autograd.grad(run(x), x, create_graph=True)
        found.append([run(x), first, *torch.autograd.grad(first.square().sum(), x)])
    torch.testing.assert_close(*found)
    target = target_of(GRAPH, Options(target=name))
    program = native_program(GRAPH, Options(target=name))
    assert (program is not None) == target.has_kernels


@pytest.mark.parametrize("mapping", LoopMapping)
def test_a_target_is_put_together_of_what_there_is(mapping: LoopMapping) -> None:
    """Kernels of either mapping, without code for any machine: nothing else has to be said."""
    target = dataclasses.replace(loops_target(), name="mine", mapping=mapping)
    x, places = torch.rand(5, 4), torch.tensor([3, 0, 3])

    def function(x: torch.Tensor, places: torch.Tensor) -> list[torch.Tensor]:
        return [x.softmax(-1), x.sin().sum(0), x.sum(), x.t().contiguous(), x[places] * 2]

    plan = lower(graph_of(function, [x, places]), target)
    found = LoopProgram(plan, target)([x, places])
    for ours, eager in zip(found, function(x, places), strict=True):
        torch.testing.assert_close(ours, eager)
    assert any(launch.grid is not None for launch in launches(plan)) == target.has_grid


def test_loops_run_on_the_processor_alone() -> None:
    assert target_of(GRAPH, Options(target="loops")) == loops_target()
    assert target_on(torch.device("cuda", 0), Options(target="loops")) is REFERENCE


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
