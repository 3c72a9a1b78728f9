"""Measurements, their medians, and the ratios between systems."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import Self

PEERS = ("eager", "inductor", "func_inductor", "jax")
# Under torch.func, Inductor compiles the derivatives, too; where that fails or there are none, its
# first call of the network alone is the comparison.
COLD_PEERS = ("func_inductor", "inductor")
# An error above this multiple of eager's own rounding error is reported as wrong.
MAX_ERROR_OVER_EAGER = 10.0


@dataclass(frozen=True)
class _Message:
    """A dataclass that processes send each other as JSON."""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Task(_Message):
    """What one process measures, and how."""

    workload: str
    """A standard workload, or a user's `module:function`."""
    system: str
    device: str
    reps: int
    small: bool = False
    args: str | None = None
    """The arguments of a user's function, as Python."""
    table: str = "steps"
    """What is measured of it: `steps`, `sizes` (steps whose sizes change), `calls` (short ones),
    `zoo` (other models)."""


@dataclass(frozen=True)
class Measurement(_Message):
    """Results of one process: seconds, bytes, and the relative error of what it computed."""

    step: float
    cold: float
    memory: int | None
    error: float | None
    """None: there was no reference to compare with."""
    in_float64: bool = True
    """The error is against eager in float64, not in the precision of the step."""
    unseen: float | None = None
    """Where sizes change: seconds of a step on sizes never seen before; `step` is at one size."""
    again: float | None = None
    """The same for sizes that were seen, among others, once before."""
    compiling_steps: int | None = None
    """How many steps compiled something, the first among them."""


@dataclass(frozen=True)
class Failure:
    """Why there is no measurement."""

    why: str


@dataclass(frozen=True)
class Row:
    """One system on one workload: medians over the runs, or why it failed."""

    workload: str
    system: str
    measurements: tuple[Measurement, ...]
    failure: str | None = None

    @property
    def step(self) -> float | None:
        return self._median([m.step for m in self.measurements])

    @property
    def cold(self) -> float | None:
        return self._median([m.cold for m in self.measurements])

    @property
    def memory(self) -> float | None:
        return self._median([m.memory for m in self.measurements if m.memory is not None])

    @property
    def unseen(self) -> float | None:
        return self._median([m.unseen for m in self.measurements if m.unseen is not None])

    @property
    def again(self) -> float | None:
        return self._median([m.again for m in self.measurements if m.again is not None])

    @property
    def unseen_over_one(self) -> float | None:
        """Of each process by itself: the machine may be slower while another runs."""
        return self._median([m.unseen / m.step for m in self.measurements if m.unseen is not None])

    @property
    def compiling_steps(self) -> int | None:
        """The most in any run."""
        counts = [m.compiling_steps for m in self.measurements if m.compiling_steps is not None]
        return max(counts, default=None)

    @property
    def error(self) -> float | None:
        """The worst, not the median: one wrong result is wrong."""
        return max((m.error for m in self.measurements if m.error is not None), default=None)

    @property
    def in_float64(self) -> bool:
        return all(m.in_float64 for m in self.measurements)

    def _median(self, values: Sequence[float]) -> float | None:
        return statistics.median(values) if values and self.failure is None else None


def row(workload: str, system: str, outcomes: Sequence[Measurement | Failure]) -> Row:
    """All runs of one system on one workload. One failure is a failure of the system."""
    measured = tuple(o for o in outcomes if isinstance(o, Measurement))
    failures = [o.why for o in outcomes if isinstance(o, Failure)]
    return Row(workload, system, measured, failures[0] if failures else None)


@dataclass(frozen=True)
class Table:
    """All rows of a benchmark, and how they compare."""

    rows: tuple[Row, ...]

    def workloads(self) -> list[str]:
        return list(dict.fromkeys(row.workload for row in self.rows))

    def of(self, workload: str) -> list[Row]:
        return [row for row in self.rows if row.workload == workload]

    def step_over_eager(self, row: Row) -> float | None:
        return _ratio(row.step, self._step(row.workload, "eager"))

    def step_over_best_peer(self, row: Row) -> float | None:
        steps = [self._step(row.workload, peer) for peer in PEERS]
        return _ratio(row.step, min((s for s in steps if s is not None), default=None))

    def memory_over_best_peer(self, row: Row) -> float | None:
        peaks = [self._find(row.workload, peer).memory for peer in PEERS]
        return _ratio(row.memory, min((peak for peak in peaks if peak), default=None))

    def cold_over_inductor(self, row: Row) -> float | None:
        colds = [self._find(row.workload, peer).cold for peer in COLD_PEERS]
        return _ratio(row.cold, next((c for c in colds if c is not None), None))

    def looks_wrong(self, row: Row) -> bool:
        """The error is beyond what eager's own rounding explains."""
        if row.error is None:
            return False
        rounding = self._find(row.workload, "eager").error
        return row.error > MAX_ERROR_OVER_EAGER * max(rounding or 0.0, 1e-5)

    def is_sound(self) -> bool:
        """Every system ran and computed what eager does."""
        return not any(row.failure is not None or self.looks_wrong(row) for row in self.rows)

    def to_json(self, settings: dict[str, object]) -> str:
        """Medians, ratios and every measurement; an infinite error is the string "inf"."""
        return json.dumps(
            {
                "settings": settings,
                "machine": machine(),
                "rows": [self._row_as_dict(row) for row in self.rows],
            },
            indent=2,
            allow_nan=False,
        )

    def _row_as_dict(self, row: Row) -> dict[str, object]:
        changing = {
            "unseen_s": row.unseen,
            "again_s": row.again,
            "unseen_over_one": row.unseen_over_one,
            "compiling_steps": row.compiling_steps,
        }
        return {
            "workload": row.workload,
            "system": row.system,
            "failure": row.failure,
            "step_s": row.step,
            "cold_s": row.cold,
            "memory_bytes": row.memory,
            "error": _finite(row.error),
            "error_in_float64": row.in_float64,
            "step_over_eager": self.step_over_eager(row),
            "step_over_best_peer": self.step_over_best_peer(row),
            "cold_over_inductor": self.cold_over_inductor(row),
            "memory_over_best_peer": self.memory_over_best_peer(row),
            **({} if row.unseen is None else changing),
            "runs": [
                {**dataclasses.asdict(m), "error": _finite(m.error)} for m in row.measurements
            ],
        }

    def _find(self, workload: str, system: str) -> Row:
        found = (r for r in self.of(workload) if r.system == system)
        return next(found, Row(workload, system, (), "was not run"))

    def _step(self, workload: str, system: str) -> float | None:
        return self._find(workload, system).step


def _ratio(value: float | None, unit: float | None) -> float | None:
    return None if value is None or not unit else value / unit


def _finite(error: float | None) -> float | str | None:
    return error if error is None or math.isfinite(error) else "inf"


def machine() -> dict[str, object]:
    """The versions and hardware of the measurements."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }
