from __future__ import annotations

from adjoint.quantities import counted, duration, in_bytes, in_flops


def test_one_and_many() -> None:
    assert counted(1, "file") == "1 file"
    assert counted(0, "kernel") == "0 kernels"
    assert counted(1204, "class", "classes") == "1,204 classes"


def test_bytes() -> None:
    counts = [0, 1023, 1024, 5 << 19, 3 << 30, 1 << 50]
    words = ["0 B", "1023 B", "1.0 KiB", "2.5 MiB", "3.0 GiB", "1024.0 TiB"]
    assert [*map(in_bytes, counts)] == words


def test_flops() -> None:
    counts = [0, 999, 1000, 3_400_000_000, 10**16]
    assert [*map(in_flops, counts)] == ["0 FLOP", "999 FLOP", "1 kFLOP", "3.4 GFLOP", "1e+04 TFLOP"]


def test_durations() -> None:
    assert [*map(duration, [3.1e-6, 4.2e-3, 1.05])] == ["3.1 us", "4.2 ms", "1.05 s"]
