from __future__ import annotations

import pytest
from torch.autograd import profiler as autograd_profiler
from torch.profiler import ProfilerActivity, profile

from adjoint.torch_private.profiler import is_profiling, on_profiling

# Torch 2.11 warns of its own profiler.
pytestmark = pytest.mark.filterwarnings("ignore:Warning. Profiler clears events")


def test_starts_and_stops_are_noticed() -> None:
    seen: list[str] = []
    originals = autograd_profiler._run_on_profiler_start, autograd_profiler._run_on_profiler_stop
    on_profiling(lambda: seen.append("on"), lambda: seen.append("off"))
    try:
        with profile(activities=[ProfilerActivity.CPU]):
            assert is_profiling()
        assert not is_profiling()
        with autograd_profiler.profile():
            pass
    finally:
        autograd_profiler._run_on_profiler_start = originals[0]
        autograd_profiler._run_on_profiler_stop = originals[1]
    assert seen == ["on", "off", "on", "off"]
