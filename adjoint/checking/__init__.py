"""Eager torch beside compiled code: where results differ, and which op, pass or kernel is why."""

from adjoint.checking.checker import Checker

__all__ = ["Checker"]
