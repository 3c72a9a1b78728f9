"""What the text of a graph may name: functions, record types, keys of metadata."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Callable

import torch

from adjoint.errors import SourceLine
from adjoint.forms.form import Form
from adjoint.graph import calling as c
from adjoint.graph import descriptors as d
from adjoint.graph import operations
from adjoint.graph.derivative import Backward, Derivative, Segments
from adjoint.graph.metadata import CheckpointRegion, GradOf, Mode
from adjoint.torch_private.operators import recorded_loop

# Python operators on symbolic sizes.
_PYTHON = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "neg", "pos", "getitem", "eq"),
    *("ne", "lt", "le", "gt", "ge", "and_", "or_", "xor", "not_", "invert", "lshift", "rshift"),
)
GRAPH_FUNCTIONS: dict[str, Callable[..., object]] = {
    **{f"operator.{name}": getattr(operator, name) for name in _PYTHON},
    **{f"builtins.{name}": getattr(builtins, name) for name in ("abs", "max", "min", "round")},
    **{f"math.{name}": getattr(math, name) for name in ("ceil", "floor", "trunc", "sqrt")},
    **{
        f"torch.{name}": getattr(torch, name)
        for name in (
            *("sym_max", "sym_min", "sym_int", "sym_float", "sym_ite", "sym_not", "sym_sum"),
            "sym_sqrt",
        )
        if hasattr(torch, name)
    },
    **{
        f"adjoint.{each.__name__}": each
        for each in (
            operations.as_leaf,
            operations.on_copies,
            operations.in_order,
            operations.take_attribute,
            operations.apply_function,
            operations.with_backward,
        )
    },
    **{
        f"higher_order.{name}": getattr(torch.ops.higher_order, name)
        for name in ("cond", "scan", "map_impl", "while_loop")
    },
    "adjoint.recorded_loop": recorded_loop,
}

# Namespaces of operators whose derivatives and fakes are in torch or in adjoint.  Those of other
# operators may be the user's Python code.
KNOWN_NAMESPACES = frozenset({"aten", "prims", "adjoint", "torch_nn", "_c10d_functional"})

DESCRIPTORS = (
    *(d.Argument, d.Parameter, d.Buffer, d.ClosedOver, d.SymbolicSize, d.Result),
    *(d.ViewBase, d.SyntheticBase, d.InputMutation, d.MetadataMutation, d.IntermediateBase),
    *(d.ViewArgument, d.ViewValue, d.Saved, d.SavedInput, d.EarlierResult, d.Tangent),
    *(d.Gradient, d.Seeds, d.EffectToken, d.EffectTokenOut),
)

GRAPH_FORM = Form(
    [
        *DESCRIPTORS,
        *(Mode, CheckpointRegion, GradOf, SourceLine, Segments, Backward, Derivative),
        *c.RECORDS,
    ],
    functions=GRAPH_FUNCTIONS,
)

# Written once in a document, and then referred to: most nodes share them with other nodes.
REPEATED = frozenset({Mode, GradOf, SourceLine, *DESCRIPTORS})

# The metadata of a node that is written as it is; others are handled one by one.
PLAIN_META = frozenset({"mode", "grad_of", "order", "part_of", "forward", "descriptor"})
KNOWN_META = PLAIN_META | {"val", "source", "region", "origin", "descriptors"}
