from __future__ import annotations

import ctypes
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch

from adjoint.runtime.gpu import driver

SIDE = 5


class Driver:
    """A library in the driver's place, which writes down what it is asked for."""

    def __init__(self, **failing: int) -> None:
        self.failing = failing
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Callable[..., int]:
        def answer(*args: Any) -> int:
            self.asked.append(name)
            if name in ("cuModuleLoadDataEx", "cuModuleGetFunction"):
                args[0]._obj.value = 55
            if name == "cuGraphInstantiateWithFlags":
                args[0]._obj.value = 77
            if name == "cuStreamEndCapture" and name not in self.failing:
                args[1]._obj.value = 66
            return self.failing.get(name, 0)

        return answer

    def recording(self) -> list[str]:
        return [name for name in self.asked if "Stream" in name or "Graph" in name]


BEGIN, END = "cuStreamBeginCapture_v2", "cuStreamEndCapture"


class TestCapture:
    @pytest.fixture
    def driver_with(self, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Driver]:
        def using(**failing: int) -> Driver:
            library = Driver(**failing)
            monkeypatch.setattr(driver, "library", lambda: library)
            monkeypatch.setattr(driver, "_context", lambda device: device)
            return library

        return using

    def test_it_is_made_of_what_runs_meanwhile(self, driver_with: Callable[..., Driver]) -> None:
        library = driver_with()
        assert driver.capture(lambda: library.asked.append("GraphWork"), SIDE, 0) == (77, None)
        assert library.recording() == [
            BEGIN,
            "GraphWork",
            END,
            "cuGraphInstantiateWithFlags",
            "cuGraphDestroy",
        ]

    def test_an_error_ends_it(self, driver_with: Callable[..., Driver]) -> None:
        library = driver_with()

        def work() -> None:
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            driver.capture(work, SIDE, 0)
        assert library.recording() == [BEGIN, END, "cuGraphDestroy"]

    def test_what_cannot_be_recorded_is_refused(self, driver_with: Callable[..., Driver]) -> None:
        library = driver_with(cuStreamEndCapture=901)
        with pytest.raises(
            driver.DriverError, match=r"the driver would not capture: .* \(CUDA error 901"
        ):
            driver.capture(lambda: None, SIDE, 0)
        assert library.recording() == [BEGIN, END]

    def test_it_may_be_forgotten_at_any_time(self, driver_with: Callable[..., Driver]) -> None:
        library = driver_with()
        driver.destroy_graph(77)
        exchange = "cuThreadExchangeStreamCaptureMode"
        assert library.recording() == [exchange, "cuGraphExecDestroy", exchange]

    def test_nor_is_anything_left_of_one_that_cannot_run(
        self, driver_with: Callable[..., Driver]
    ) -> None:
        library = driver_with(cuGraphInstantiateWithFlags=2)
        with pytest.raises(driver.DriverError, match="instantiate a CUDA graph"):
            driver.capture(lambda: None, SIDE, 0)
        assert library.recording()[-1] == "cuGraphDestroy"

    def test_code_is_unloaded_with_its_last_function(
        self, driver_with: Callable[..., Driver]
    ) -> None:
        library = driver_with()
        one, other = driver.load(b"", ["one", "other"], 0)
        del one
        gc.collect()
        assert "cuModuleUnload" not in library.asked
        del other
        gc.collect()
        exchange = "cuThreadExchangeStreamCaptureMode"
        assert library.asked[-4:] == [exchange, "cuCtxSetCurrent", "cuModuleUnload", exchange]

    def test_so_is_code_that_lacks_a_function(self, driver_with: Callable[..., Driver]) -> None:
        library = driver_with(cuModuleGetFunction=500)
        with pytest.raises(driver.DriverError, match="find one"):
            driver.load(b"", ["one"], 0)
        gc.collect()
        assert library.asked.count("cuModuleUnload") == 1


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
