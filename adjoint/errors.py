"""What a user is told: one error for each kind of failure, with the place in the user's code.

A failure inside the compiler - an assertion, a lookup, an exception of a library - is told as the
kind of failure that it is to the user: of capture, or of differentiation.  The exception itself is
its `__cause__`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's program."""

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        place = f"{self.file}:{self.line} in {self.function}"
        text = self.text.strip()
        return f"{place}: {text}" if text else place


class CaptureError(RuntimeError):
    """A function cannot be captured: which construct, why, where, and what to do instead.

        cannot capture aten.nonzero: the size of its result depends on values
          at model.py:12 in forward: index = mask.nonzero()
          way out: use torch.where(mask, x, 0), whose size is known

    It is raised before anything has run: inputs and buffers are as they were.
    """

    def __init__(
        self,
        construct: str,
        why: str,
        remedy: str,
        source: SourceLine | None = None,
        is_internal: bool = False,
    ) -> None:
        """`is_internal`: it is a failure of the compiler's, and no construct that it refuses."""
        # The arguments are the exception's args, so that it can be copied between processes.
        super().__init__(construct, why, remedy, source, is_internal)
        self.construct = construct
        self.why = why
        self.remedy = remedy
        self.source = source
        self.is_internal = is_internal
        self.depends_on_data = False
        """What the program does next, or a size, depends on values."""

    def __str__(self) -> str:
        lines = [f"cannot capture {self.construct}: {self.why}"]
        if self.source is not None:
            lines.append(f"  at {self.source}")
        lines.append(f"  way out: {self.remedy}")
        return "\n".join(lines)


class OutsideLevelError(CaptureError):
    """A function under a level of `torch.func` closes over a tensor of that level.

    A graph cannot hold it: what it means to batch or differentiate it is the level's business.
    """


class FallbackWarning(UserWarning):
    """Something runs in eager torch, because adjoint cannot do it and says so once."""


class DifferentiationError(RuntimeError):
    """An op has no derivative: which op, at which order, why, and where in the user's program.

        cannot differentiate aten.igamma.default at order 1: derivative of self is not implemented
          at model.py:12 in forward: y = torch.igamma(a, x)
          way out: detach its argument, or give the op a rule with adjoint.vjp_rule

    It is raised when the derivative is built: nothing has run.
    """

    def __init__(
        self,
        op: str,
        order: int,
        why: str,
        source: SourceLine | None = None,
        remedy: str = "detach its argument, or give the op a rule with adjoint.vjp_rule",
    ) -> None:
        super().__init__(op, order, why, source, remedy)
        self.op = op
        self.order = order
        self.why = why
        self.source = source
        self.remedy = remedy

    def __str__(self) -> str:
        lines = [f"cannot differentiate {self.op} at order {self.order}: {self.why}"]
        if self.source is not None:
            lines.append(f"  at {self.source}")
        lines.append(f"  way out: {self.remedy}")
        return "\n".join(lines)
