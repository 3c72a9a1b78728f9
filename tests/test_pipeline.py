from __future__ import annotations

import pytest

from adjoint.passes import Pass
from adjoint.pipeline import FORWARD, JOINT, LINEAR, POST


@pytest.mark.parametrize("pipeline", [FORWARD, JOINT, LINEAR, POST])
def test_passes_have_names_in_kebab_case(pipeline: tuple[Pass, ...]) -> None:
    assert pipeline
    for each in pipeline:
        assert each.name == each.name.lower().replace("_", "-")
        assert each.run.__doc__, "a pass says what it does"


def test_a_softmax_is_closed_before_and_opened_after_differentiation() -> None:
    assert [each.name for each in FORWARD] == ["close-softmax"]
    names = [each.name for each in JOINT]
    # What an opened softmax is made of may be there already.
    assert "merge-common-subexpressions" in names[names.index("open-softmax") :]
