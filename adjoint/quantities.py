"""Quantities as text: counts, bytes, floating-point operations, durations."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, one: str, many: str = "") -> str:
    """`1 file`, `2 files`, `1,204 lines`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def in_bytes(count: int) -> str:
    """`512 B`, `4.2 MiB`."""
    if count < 1024:
        return f"{count} B"
    amount, unit = _scaled(count, 1024, ("B", "KiB", "MiB", "GiB", "TiB"))
    return f"{amount:.1f} {unit}"


def in_flops(count: int) -> str:
    """`12 FLOP`, `3.4 GFLOP`."""
    amount, unit = _scaled(count, 1000, ("FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP"))
    return f"{amount:.3g} {unit}"


def _scaled(count: int, step: int, units: Sequence[str]) -> tuple[float, str]:
    """The amount in the largest unit of which there is one, and that unit."""
    amount = float(count)
    *smaller, largest = units
    for unit in smaller:
        if amount < step:
            return amount, unit
        amount /= step
    return amount, largest


def duration(seconds: float) -> str:
    """`3.1 us`, `4.2 ms`, `1.05 s`."""
    if seconds < 1e-3:
        return f"{1e6 * seconds:.1f} us"
    return f"{1e3 * seconds:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
