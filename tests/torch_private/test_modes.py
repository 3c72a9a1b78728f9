from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from adjoint.torch_private import modes
from adjoint.torch_private.fake import new_fake_mode


def test_without_torch_function() -> None:
    seen = []

    class Watch(modes.TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            seen.append(function)
            return function(*args, **(kwargs or {}))

    with Watch():
        with modes.without_torch_function():
            torch.sin(torch.Tensor())
        assert not seen
        torch.sin(torch.Tensor())
    assert seen


def test_nobody_watches_inside() -> None:
    class Refusing(modes.TorchDispatchMode):
        def __torch_dispatch__(
            self, op: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            raise AssertionError(op)

    def pack(tensor: Tensor) -> Tensor:
        raise AssertionError(tensor)

    x = torch.ones(3, requires_grad=True)
    with saved_tensors_hooks(pack, pack), torch.autograd.set_detect_anomaly(True):
        with Refusing():  # type: ignore[no-untyped-call]
            with modes.without_observers():
                assert not torch.is_anomaly_enabled()
                x.sin()
            with pytest.raises(AssertionError):
                x.detach()
        assert torch.is_anomaly_enabled()
        with pytest.raises(AssertionError):
            x.sin()


def test_where_tensors_are_made_and_who_sees_calls() -> None:
    assert modes.default_devices() == ()
    assert not modes.has_torch_function_mode()
    with torch.device("meta"), torch.device("cpu"):
        assert [each.type for each in modes.default_devices()] == ["meta", "cpu"]
        assert not modes.has_torch_function_mode()
        with modes.TorchFunctionMode():
            assert modes.has_torch_function_mode()
            assert len(modes.default_devices()) == 2


def test_autocast_is_off_inside() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        with modes.without_autocast():
            assert not torch.is_autocast_enabled("cpu")
        assert torch.is_autocast_enabled("cpu")
    with modes.without_autocast():
        assert not torch.is_autocast_enabled("cpu")


def test_real_tensors_while_others_are_faked() -> None:
    real = torch.arange(3)
    with new_fake_mode(), modes.without_dispatch_modes():
        assert torch.equal(real, real.clone())
