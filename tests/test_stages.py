from __future__ import annotations

import pytest
import torch
from torch import Tensor

from adjoint.kernels import CompiledKernels
from adjoint.observing import Sighting
from adjoint.stages import StageLog, differences, printed, text_of, watched


def function(x: Tensor, y: Tensor) -> Tensor:
    return (x.sin() * y + x.sin()).sum()


def test_every_stage_of_every_order_is_seen() -> None:
    log = watched(function, (torch.rand(3), torch.rand(3)), {}, order=2)
    stages = [(each.stage, each.order) for each in log.shown]
    assert stages[0] == ("capture", 0)
    for order in (1, 2):
        # A derivative is differentiated and partitioned before it runs.
        names = ["differentiate", "merge-common-subexpressions", "partition", "lower", "emit"]
        places = [stages.index((name, order)) for name in names]
        assert places == sorted(places)
    text = printed(log.shown)
    assert "# capture - the program - " in text
    assert "# partition - derivative of order 2 - " in text
    assert "aten.sin.default" in text
    assert "# saves L['x']" in text


def test_one_stage_and_what_each_changed() -> None:
    log = watched(function, (torch.rand(3), torch.rand(3)), {}, order=1)
    chosen = log.chosen("lower")
    assert len(chosen) == 2
    assert {each.order for each in chosen} == {0, 1}
    assert log.chosen("no such stage") == []
    assert "lower" in log.names
    changed = differences([each for each in log.shown if each.order == 1])
    # The second sine is merged with the first.
    merged = changed.partition("+++ merge-common-subexpressions")[2].partition("# open-softmax")[0]
    assert merged.count("aten.sin.default") == 1
    assert "aten.sin.default" in next(
        line for line in merged.splitlines() if line.startswith("-") and "sin" in line
    )


def test_a_module_is_differentiated_with_respect_to_its_parameters() -> None:
    log = watched(torch.nn.Linear(2, 2), (torch.rand(3, 2),), {}, order=1)
    assert any(each.stage == "partition" for each in log.shown)
    assert not any(each.order for each in watched(lambda x: x > 0, (torch.rand(3),), {}, 1).shown)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing: it runs op by op"),
        (CompiledKernels({}, {}), "0 kernels compiled"),
        (3, "int"),
    ],
)
def test_what_is_no_graph_is_named(value: object, text: str) -> None:
    assert text_of(value) == text
    log = StageLog()
    log(Sighting("load", 0, value, 0.001))
    assert printed(log.shown) == f"# load - the program - 1.0 ms\n{text}"
