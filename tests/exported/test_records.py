from __future__ import annotations

import pytest
import torch

from adjoint.exported.records import (
    RECORD_FORM,
    BackwardRecord,
    ConstantRecord,
    GraphRecord,
    NodeRecord,
    TensorRecord,
)
from adjoint.forms.form import Malformed, Unwritable
from adjoint.graph.derivative import NodeLayout


def test_records_are_read_as_they_were_written() -> None:
    last = GraphRecord(2, None, True)
    both = frozenset({0, 1})
    node = NodeRecord(
        NodeLayout(1, (0,), (1,), (0, 1), both, both),
        (0,),
        1,
        (both,),
        (BackwardRecord((0,), (0, 1), (), last),),
    )
    graph = GraphRecord(0, node, False)
    assert RECORD_FORM.value(RECORD_FORM.text(graph)) == graph
    tensor = TensorRecord("x", torch.float32, (3,), (1,))
    assert RECORD_FORM.value(RECORD_FORM.text(tensor)) == tensor


def test_a_record_has_its_types() -> None:
    text = RECORD_FORM.text(GraphRecord(0, None, False)).replace("false", "0")
    with pytest.raises(Malformed, match="ends"):
        RECORD_FORM.value(text)


def test_an_object_is_no_constant() -> None:
    with pytest.raises(Unwritable):
        RECORD_FORM.text(ConstantRecord("x", object()))
