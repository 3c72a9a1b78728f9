from __future__ import annotations

import logging
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch import Tensor

import adjoint
from adjoint.errors import SourceLine
from adjoint.observing import (
    Compilation,
    Event,
    Fallback,
    Observer,
    Sighting,
    tell,
    timed_compilation,
    unobserved,
    watching,
)

PACKAGE = Path(adjoint.__file__).parent


def test_one_may_look_away() -> None:
    observer: Observer = unobserved
    observer(Sighting("capture", 0, object(), 0.0))


def test_who_watches_the_process_sees_every_stage_and_function() -> None:
    def watched(x: Tensor) -> Tensor:
        return x.sin().sum()

    seen: list[Event] = []
    with watching(seen.append):
        torch.compile(watched, backend="adjoint")(torch.rand(3, requires_grad=True)).backward()
    stages = [each for each in seen if isinstance(each, Sighting)]
    assert {each.function for each in stages} == {"watched"}
    assert {each.order for each in stages} == {0, 1}
    count = len(seen)
    torch.compile(lambda x: x + 1, backend="adjoint")(torch.rand(3))
    assert len(seen) == count


def test_transforms_are_told_of_with_the_reason() -> None:
    def squared(x: Tensor) -> Tensor:
        return x.square().sum()

    seen: list[Event] = []
    gradient = adjoint.grad(squared)
    with watching(seen.append):
        gradient(torch.rand(3))
        gradient(torch.rand(4))
        gradient(torch.rand(4).double())
        gradient(torch.rand(5))
    found = [each for each in seen if isinstance(each, Compilation)]
    assert [each.reason for each in found] == [
        "",
        "tensor 0: size 4 in dimension 0, was 3; a symbol from now on",
        "tensor 0: dtype torch.float64, was torch.float32",
    ]
    assert all("squared" in each.function and each.seconds > 0 for each in found)


def test_sizes_that_violate_an_assumption_are_told_of() -> None:
    def halved(x: Tensor) -> Tensor:
        return x[: x.shape[0] // 2].sum() if x.shape[0] % 2 == 0 else x.sum()

    seen: list[Event] = []
    compiled = torch.compile(halved, backend="adjoint", dynamic=True)
    with watching(seen.append):
        compiled(torch.rand(4))
        compiled(torch.rand(5))
    reasons = [each.reason for each in seen if isinstance(each, Compilation)]
    assert reasons[0] == ""
    assert len(reasons) == 2
    assert "2" in reasons[1]


def test_channels_of_logging(caplog: pytest.LogCaptureFixture) -> None:
    line = SourceLine("model.py", 3, "forward", "y = x.sort()")
    with caplog.at_level(logging.DEBUG, logger="adjoint"):
        tell(Sighting("lower", 1, None, 0.002, function="f"))
        tell(Fallback("it runs in eager", line))
        tell(Compilation("f", "torch.compile", line, seconds=1.0))
        tell(Compilation("f", "torch.compile", line, "argument n: 4, was 3", 1.0))
    said = {record.name: record.getMessage() for record in caplog.records}
    assert said == {
        "adjoint.stages": "f: lower, order 1, 2.0 ms",
        "adjoint.fallbacks": "it runs in eager at model.py:3 in forward: y = x.sort()",
        "adjoint.compilations": "f: torch.compile, 1.00 s",
        "adjoint.recompilations": "f: torch.compile again, 1.00 s: argument n: 4, was 3",
    }


def test_what_fails_to_compile_is_not_told_of() -> None:
    seen: list[Event] = []
    compilation = timed_compilation(Compilation("f", "torch.compile", None))
    with watching(seen.append), pytest.raises(ValueError, match="no"), compilation:
        raise ValueError("no")
    assert seen == []


def test_a_fallback_is_told_of_even_if_the_warning_is_ignored() -> None:
    seen: list[Event] = []
    with watching(seen.append), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        adjoint.grad(lambda x: x.sum() if x.sum() > 0 else -x.sum())(torch.rand(5))
    assert any(isinstance(each, Fallback) for each in seen)


def test_who_does_not_watch_pays_nothing() -> None:
    def quiet(x: Tensor) -> Tensor:
        return x.sin().square().sum()

    compiled = torch.compile(quiet, backend="adjoint")
    gradient = adjoint.grad(quiet)
    x = torch.rand(4, requires_grad=True)

    def step() -> None:
        (slope,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        slope.sum().backward()
        gradient(x.detach())

    step()
    files: set[str] = set()
    sys.setprofile(lambda frame, event, _: files.add(frame.f_code.co_filename))
    try:
        step()
    finally:
        sys.setprofile(None)
    ours = {Path(each).relative_to(PACKAGE) for each in files if each.startswith(str(PACKAGE))}
    assert Path("runtime/autograd_node.py") in ours
    watchers = {"observing.py", "explaining", "checking", "profiling.py", "progress.py", "atlas"}
    assert [path for path in ours if watchers & {*path.parts}] == []
