"""What torch leaves open: values to which its interfaces give the type `Any`, or none.

Each has its name here, once, so that `Any` is written nowhere else above `torch_private/`
(`tests/test_tidy.py`).  Where a module knows more than torch says, it names the type it knows.  The
last two names are for values that other libraries leave open.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

TorchValue: TypeAlias = Any
"""What a program is given and computes, as torch passes it on: a tensor, a number, plain or
symbolic, None, or a container of these.  Inputs and outputs of programs, pytrees of users, fake
values in the metadata of torch.fx.  The calling convention or the schema of an operator says which
one stands at a place."""

OpArgument: TypeAlias = Any
"""An argument of an operator: of a node, where nodes stand for values, or of a call under a
dispatch mode, which torch calls with whatever the schema of the operator allows."""

OpArguments: TypeAlias = tuple[OpArgument, ...]
OpKeywords: TypeAlias = dict[str, OpArgument]
"""All arguments of a call: by position, and by name."""

Callee: TypeAlias = Callable[..., Any]
"""What a node calls: an overload of an operator, a higher-order operator, or a function."""

UserFunction: TypeAlias = Callable[..., Any]
"""A function of the user's, or what is made of one: its caller knows what it returns."""

AutogradContext: TypeAlias = Any
"""The `ctx` of a `torch.autograd.Function`, on which attributes are set at will."""

FromText: TypeAlias = Any
"""What `json` or `tomllib` has read, and what is made of it: whoever reads it checks it."""

Scalar: TypeAlias = Any
"""A NumPy scalar or a bool.  NumPy's stubs have no type for arithmetic on two scalars of one
type."""
