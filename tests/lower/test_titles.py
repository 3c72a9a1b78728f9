from __future__ import annotations

import torch
from torch import Tensor

from adjoint.capture.direct import capture
from adjoint.compiler import Compiler
from adjoint.loops.plan import Plan
from adjoint.lower.titles import MAX_NAMED_OPS
from adjoint.observing import Sighting
from adjoint.stages import observe
from adjoint.target import cpu_target


def scattered(x: Tensor, w: Tensor, index: Tensor) -> Tensor:
    return torch.zeros(4, 3).index_add(0, index, torch.nn.functional.silu(x) * w)


ARGS = (torch.rand(8, 3), torch.rand(3), torch.randint(0, 4, (8,)))


def titles(plan: Plan | None) -> list[str]:
    assert plan is not None
    return [launch.title for launch in plan.launches]


def test_a_kernel_is_named_after_what_the_user_wrote() -> None:
    graph_module = capture(scattered, *ARGS).graph_module
    assert titles(Compiler().plan(graph_module, cpu_target())) == ["fused_silu_mul_index_add"]


def test_a_kernel_of_one_operator_has_its_name() -> None:
    graph_module = capture(lambda x: torch.softmax(x, 1), torch.rand(3, 4)).graph_module
    assert titles(Compiler().plan(graph_module, cpu_target())) == ["softmax"]


def test_a_kernel_of_many_operators_names_some() -> None:
    def many(x: Tensor) -> Tensor:
        return x.sin().cos().exp().tanh().abs().neg().sigmoid()

    (title,) = titles(Compiler().plan(capture(many, torch.rand(9)).graph_module, cpu_target()))
    assert title == "fused_sin_cos_exp_tanh_abs_and_2_more"
    assert title.count("_") == MAX_NAMED_OPS + 3


def test_derivatives_are_named_after_the_operator_they_differentiate() -> None:
    found: list[str] = []

    def noted(sighting: Sighting) -> None:
        if isinstance(sighting.value, Plan) and sighting.order == 1:
            found.extend(titles(sighting.value))

    observe(noted, scattered, ARGS, {}, order=1)
    assert any("silu_backward" in each for each in found), found
