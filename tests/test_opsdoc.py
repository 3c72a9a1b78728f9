"""`docs/ops.md` says what is so."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from adjoint.rules.registry import COMPOSITIONS, NON_DIFFERENTIABLE, VJPS
from tests import opsdoc
from tests.differentiate.test_opinfo import ops_of

# The file is compared as a whole among the slow tests: it takes a capture of every sample there is.
STALE = "docs/ops.md is stale; write it with: python -m tests.opsdoc"
SHARD = 60


def listed() -> dict[str, list[str]]:
    lines = opsdoc.FILE.read_text().splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return {row[0].strip("`"): row[1:] for row in cells if row and row[0].startswith("`")}


def _is_of_a_user(op: Any) -> bool:
    rule = VJPS.get(op) or COMPOSITIONS.get(op)
    is_ours = op.namespace == "prims" or str(getattr(rule, "__module__", "")).startswith("adjoint.")
    return rule is not None and not is_ours


# The file is about the newest torch that is supported; an older one lacks some of the ops.
OLDER = not hasattr(torch.nn.functional, "linear_cross_entropy")


@pytest.mark.skipif(OLDER, reason="this torch lacks some of the ops in the file")
def test_each_rule_is_in_the_file() -> None:
    # Documents and other tests register rules of users' ops.
    ours = {op for op in {*VJPS, *COMPOSITIONS, *NON_DIFFERENTIABLE} if not _is_of_a_user(op)}
    rules = {str(op): opsdoc.rule_of(op) for op in ours}
    stated = {op: row[0] for op, row in listed().items()}
    assert rules == {op: rule for op, rule in stated.items() if rule != "traced"}, STALE


def test_what_a_shard_verifies_is_in_the_file() -> None:
    found = opsdoc.verified(opsdoc.of_database(ops_of(torch.float64)[::SHARD]))
    assert len(found) > 5
    stated = listed()
    for op, of in found.items():
        rule, reverse, forward, _ = stated[str(op)]
        assert rule == opsdoc.rule_of(op), STALE
        assert rule == "none" or (reverse == "2" and forward >= ("yes" if of.forward else "")), (
            STALE
        )


@pytest.mark.slow
@pytest.mark.skipif(OLDER, reason="this torch lacks some of the ops in the file")
def test_the_whole_file_is_fresh() -> None:
    assert opsdoc.FILE.read_text() == opsdoc.text(), STALE
