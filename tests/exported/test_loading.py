from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import adjoint
from adjoint.errors import LoadError
from adjoint.exported import safetensors
from adjoint.exported.file import Exported, PlanText, read, written
from adjoint.exported.loading import validated
from tests.exports import assert_as_eager, exported, in_another_process


def layer(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.sin(x @ w) * torch.exp(-x.sum())).tanh()


def arguments() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.rand(5, 4, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)


def test_it_computes_what_was_exported(tmp_path: Path) -> None:
    args = arguments()
    loaded = exported(layer, args, tmp_path)
    for wrt in ((0, 1), (0,), (1,), ()):
        assert_as_eager(layer, loaded, args, 1, wrt)


LOADING = """
import json, time, torch
begun = time.perf_counter()
import adjoint
program = adjoint.load(sys.argv[1])
torch.manual_seed(0)
x, w = torch.rand(5, 4, dtype=torch.float64), torch.rand(4, 3, dtype=torch.float64)
x.requires_grad_()
result = program(x, w)
gradient = torch.autograd.grad(result.sum(), x)[0]
print(json.dumps({
    "result": result.tolist(), "gradient": gradient.tolist(),
    "modules": [name for name in ("llvmlite", "torch._dynamo") if name in sys.modules],
}))
"""


def test_it_needs_neither_llvm_nor_dynamo(tmp_path: Path) -> None:
    x, w = arguments()
    path = adjoint.export(layer, (x, w), tmp_path / "layer.adjoint")
    found = in_another_process(LOADING, path)
    x.requires_grad_()
    result = layer(x, w)
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert found["modules"] == []
    torch.testing.assert_close(torch.tensor(found["result"], dtype=x.dtype), result.detach())
    torch.testing.assert_close(torch.tensor(found["gradient"], dtype=x.dtype), gradient)


@pytest.fixture(scope="module")
def layer_file(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    path = tmp_path_factory.mktemp("loading") / "layer.adjoint"
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh())
    return read(adjoint.export(module, (torch.rand(4, 3),), path).read_bytes())


def with_record(file: Exported, **fields: object) -> Exported:
    record, *others = file.records
    return replace(file, records=(replace(record, **fields), *others))  # type: ignore[arg-type]


def with_plan(file: Exported, text: str, functions: tuple[str, ...]) -> Exported:
    return replace(file, plans=(PlanText(text, functions), *file.plans[1:]))


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda file: replace(file, tensors=b"no tensors"), "its tensors are damaged: "),
        (
            lambda file: replace(file, tensors=safetensors.written({})),
            "it is damaged: the tensor 0.weight is missing, or another",
        ),
        (
            lambda file: with_record(file, arguments=((0,), ())),
            "it is damaged: ProgramRecord.arguments is no ",
        ),
        (
            lambda file: with_record(file, arguments=((0,), {}, {})),
            "it is damaged: ProgramRecord.arguments is no ",
        ),
        (
            lambda file: with_record(file, arguments=((), {1: 0})),
            "it is damaged: ProgramRecord.arguments is no ",
        ),
        (lambda file: with_record(file, differentiable=(99,)), "it is damaged: not so: an input"),
        (
            lambda file: with_record(
                file,
                state=tuple(replace(each, strides=(1 << 60, 1)) for each in file.records[0].state),
            ),
            "it is damaged: RuntimeError: ",
        ),
        (lambda file: with_plan(file, "[]", ()), "it is damaged, or torch has changed: "),
        (
            lambda file: with_plan(file, file.plans[0].text, ("nothing",)),
            "it is damaged: a launch has no code",
        ),
    ],
)
def test_damage_with_a_digest_that_is_right_is_found(
    layer_file: Exported, change: Callable[[Exported], Exported], why: str, tmp_path: Path
) -> None:
    validated(written(layer_file), tmp_path)
    with pytest.raises(LoadError, match=why):
        validated(written(change(layer_file)), tmp_path)
