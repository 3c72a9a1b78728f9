import sys
from pathlib import Path

import pytest
import torch

from adjoint.bench.measure import relative_error
from adjoint.bench.own import makes_its_step, own_step

SOURCE = """
import torch

net = torch.nn.Linear(3, 2)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.linear(x).tanh()


def plain(x):
    return net(x).sin()


def make_step(compile):
    model = compile(Net())
    x = torch.randn(4, 3)
    return lambda: model(x).sum()
"""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "adjoint_bench_own.py"
    file.write_text(SOURCE)
    monkeypatch.delitem(sys.modules, file.stem, raising=False)
    return file


@pytest.mark.parametrize("system", ["eager", "adjoint"])
@pytest.mark.parametrize(
    ("name", "gradients", "in_float64"),
    [
        ("Net", ["value 0", ".linear.weight", ".linear.bias"], True),
        ("plain", ["value 0", "net.weight", "net.bias"], False),
    ],
)
def test_a_function_is_called_and_differentiated(
    source: Path, name: str, gradients: list[str], in_float64: bool, system: str
) -> None:
    expression = "torch.randn(4, 3, requires_grad=True)"
    own = own_step(f"{source}:{name}", expression, system, "cpu")
    found, right = own.step.computed(own.step.run()), own.expected()
    assert found.keys() == {"value 0", *(f"gradient of {leaf}" for leaf in gradients)}
    assert relative_error(found, right.tensors) < 1e-5
    # What it mentions is float32, and not ours to change.
    assert right.in_float64 == in_float64
    assert right.tensors["value 0"].dtype == (torch.float64 if in_float64 else torch.float32)


def test_a_step_that_is_made_for_a_compiler(source: Path) -> None:
    own = own_step(f"{source}:make_step", None, "adjoint", "cpu")
    found, right = own.step.computed(own.step.run()), own.expected()
    assert relative_error(found, right.tensors) < 1e-5
    assert not right.in_float64
    assert not makes_its_step(torch.nn.Linear(2, 2))
