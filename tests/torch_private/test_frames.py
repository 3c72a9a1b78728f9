from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from adjoint.torch_private.dynamo import DynamoError
from adjoint.torch_private.frames import is_dynamo_error, left_alone_by_dynamo, not_traced


def test_errors_of_dynamo_are_known() -> None:
    assert is_dynamo_error(DynamoError("no"))
    assert not is_dynamo_error(RuntimeError("no"))


def test_asking_does_not_import_dynamo() -> None:
    program = (
        "import sys, torch\nfrom adjoint.torch_private.frames import is_dynamo_error\n"
        "assert not is_dynamo_error(RuntimeError())\nassert 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_function_is_left_alone() -> None:
    @left_alone_by_dynamo
    def data_dependent(x: torch.Tensor) -> float:
        assert not torch.compiler.is_compiling()
        return float(x.sum())

    def backend(*_: object) -> Any:
        pytest.fail("it was compiled")

    assert torch.compile(data_dependent, backend=backend)(torch.ones(3)) == 3.0


def test_a_function_is_not_traced_into() -> None:
    @not_traced
    def data_dependent(x: torch.Tensor) -> float:
        assert not torch.compiler.is_compiling()
        return float(x.sum())

    compiled = torch.compile(lambda x: data_dependent(x * 2) + 1, backend="eager")
    assert compiled(torch.ones(3)) == 7.0
