from __future__ import annotations

import ctypes

import pytest
import torch

from adjoint.runtime.gpu import driver

GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def test_without_a_driver_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> ctypes.CDLL:
        raise OSError(name)

    driver.library.cache_clear()
    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(driver.DriverError, match=r"libcuda\.so\.1"):
        driver.library()
    driver.library.cache_clear()


@pytest.mark.gpu
@GPU
def test_bad_code_is_refused_with_what_the_assembler_says() -> None:
    torch.cuda.init()
    with pytest.raises(driver.DriverError, match="load code"):
        driver.load(b"no code at all", ["kernel"], 0)
