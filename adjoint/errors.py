"""The errors and warnings that users meet, each with the line of the user's program.

A failure inside the compiler - an assertion, a lookup, an exception of a library - reaches the user
as the error of the stage that failed: `CaptureError` or `DifferentiationError`.  The original
exception is its `__cause__`.
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

    It is raised before anything has run: inputs and buffers are unchanged.

        >>> import torch, adjoint
        >>> try:
        ...     adjoint.capture(lambda x: x if x.sum() > 0 else -x, torch.ones(2))
        ... except adjoint.CaptureError as error:
        ...     print(error.remedy != "")
        True
    """

    def __init__(
        self,
        construct: str,
        why: str,
        remedy: str,
        source: SourceLine | None = None,
        is_internal: bool = False,
    ) -> None:
        """`is_internal`: the compiler failed, rather than refused a construct."""
        # The arguments are the exception's args, so that it can be copied between processes.
        super().__init__(construct, why, remedy, source, is_internal)
        self.construct = construct
        self.why = why
        self.remedy = remedy
        self.source = source
        self.is_internal = is_internal
        self.depends_on_data = False
        """Whether control flow or a size depends on the values of tensors."""

    def __str__(self) -> str:
        return _message(f"cannot capture {self.construct}: {self.why}", self.source, self.remedy)


class OutsideLevelError(CaptureError):
    """A function inside a `torch.func` transform closes over a tensor of that transform's level.

    A graph cannot hold such a tensor: only the level knows how to batch or differentiate it.
    """


class OutsideHistoryError(CaptureError):
    """A derivative inside of a graph goes on into what was computed before the graph began."""


class ExportError(RuntimeError):
    """A program cannot be exported; the message says what is in the way.

    >>> import torch, adjoint
    >>> try:
    ...     adjoint.export(torch.sin, (torch.ones(2),), "sin.adjoint", cpus=("a4004",))
    ... except adjoint.ExportError as error:
    ...     print("x86-64-v3" in str(error))
    True
    """


class LoadError(RuntimeError):
    """An exported program does not fit: the file, this machine, or a call; the message says why.

    It is raised before anything has run.

    >>> import adjoint
    >>> try:
    ...     adjoint.load("no such file")
    ... except adjoint.LoadError as error:
    ...     print(error)
    no such file cannot be read: No such file or directory
    """


class FallbackWarning(UserWarning):
    """Part of a program runs in eager torch, because adjoint cannot compile it.

    >>> import warnings, adjoint
    >>> warnings.simplefilter("error", adjoint.FallbackWarning)  # None goes unnoticed.
    """


class CacheWarning(UserWarning):
    """Compiled programs are not cached, or a cache entry is not used: they are compiled again."""


class DifferentiationError(RuntimeError):
    """An op has no derivative: which op, at which order, why, and where in the user's program.

        cannot differentiate aten.igamma.default at order 1: derivative of self is not implemented
          at model.py:12 in forward: y = torch.igamma(a, x)
          way out: detach its argument, or give the op a rule with adjoint.vjp_rule

    It is raised when the derivative is built, before it runs.

        >>> import adjoint
        >>> print(adjoint.DifferentiationError("aten.igamma.default", 1, "it has no derivative"))
        cannot differentiate aten.igamma.default at order 1: it has no derivative
          way out: detach its argument, or give the op a rule with adjoint.vjp_rule
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
        failure = f"cannot differentiate {self.op} at order {self.order}: {self.why}"
        return _message(failure, self.source, self.remedy)


class MismatchError(RuntimeError):
    """Compiled code computed something else than eager torch: which result, op, line and kernel.

        result[0] is 0.84 instead of 0.54 at [2] (relative difference 0.4)
        the first op that differs is aten.cos.default: 0.84 instead of 0.54 at [2]
          at model.py:12 in forward: y = torch.cos(x)
          in kernel fused_cos_mul, which is wrong as soon as it computes this op

    It is raised with the option `check`, by the call or the backward pass that is wrong.

        >>> import torch, adjoint
        >>> checked = adjoint.compile(lambda x: x.sin(), check="every")
        >>> checked(torch.zeros(2))  # It is right; otherwise this would raise.
        tensor([0., 0.])
    """

    def __init__(self, what: str, why: str, op: str = "", source: SourceLine | None = None) -> None:
        """`what` differs; `why`: lines about the op, pass or kernel that is the cause."""
        super().__init__(what, why, op, source)
        self.what = what
        self.why = why
        self.op = op
        self.source = source
        self.reproduction = ""
        """A script that shows the difference, if one was found."""

    def __str__(self) -> str:
        place = "" if self.source is None else f"\n  at {self.source}"
        first, _, rest = self.why.partition("\n")
        return f"{self.what}\n{first}{place}" + (f"\n{rest}" if rest else "")


class RewriteError(RuntimeError):
    """A rule of a pass, or a user's pass, is wrong: which, at which node, why, and the user's line.

        rule 'add-relu' of pass 'use-add-relu' at relu = aten.relu.default(add): the replacement
        computes f32[3], the pattern f32[4]
          at model.py:12 in forward: y = torch.relu(x + y)

    The graph is as it was.

        >>> import adjoint
        >>> print(adjoint.RewriteError("add-relu", "use-add-relu", None, "it computes f32[3]"))
        rule 'add-relu' of pass 'use-add-relu': it computes f32[3]
    """

    def __init__(
        self,
        rule: str | None,
        graph_pass: str | None,
        node: str | None,
        why: str,
        source: SourceLine | None = None,
    ) -> None:
        super().__init__(rule, graph_pass, node, why, source)
        self.rule = rule
        self.graph_pass = graph_pass
        self.node = node
        self.why = why
        self.source = source

    def __str__(self) -> str:
        parts = (("rule", self.rule), ("pass", self.graph_pass))
        what = " of ".join(f"{kind} {name!r}" for kind, name in parts if name)
        at = f" at {self.node}" if self.node else ""
        place = "" if self.source is None else f"\n  at {self.source}"
        where = f"{what}{at}: " if what else ""
        return f"{where}{self.why}{place}"


def _message(failure: str, source: SourceLine | None, remedy: str) -> str:
    place = [] if source is None else [f"  at {source}"]
    return "\n".join([failure, *place, f"  way out: {remedy}"])
