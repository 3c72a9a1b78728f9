from __future__ import annotations

from adjoint.errors import SourceLine
from adjoint.explaining.data import of_compilation, of_fallback
from adjoint.observing import Compilation, Fallback

LINE = SourceLine("model.py", 3, "forward", "y = x.sort()")


def test_events_are_plain_data() -> None:
    compilation = of_compilation(Compilation("f", "torch.compile", LINE, "because", 0.5))
    assert compilation["reason"] == "because"
    assert compilation["source"]["line"] == 3
    assert of_fallback(Fallback("it does", None)) == {"message": "it does", "source": None}
