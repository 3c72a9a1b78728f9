"""Eager torch beside compiled code: where results differ, and which op, pass or kernel is why.

`checker.py` runs both and compares them (`comparing.py`), on copies of inputs and with the same
random numbers (`copies.py`).  `locating.py` finds the first op that differs, and
`locating_derivatives.py` the rule of one; `narrowing.py` finds the pass, and the match in it,
without which results agree.  `reproduction.py` writes a script that shows the difference.
"""

from adjoint.checking.checker import Checker

__all__ = ["Checker"]
