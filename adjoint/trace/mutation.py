"""Mutating ops: which arguments each writes to, and its functional counterpart."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from adjoint.errors import CaptureError, SourceLine
from adjoint.open_types import OpKeywords
from adjoint.torch_private.operators import (
    OpOverload,
    OpOverloadPacket,
    implicitly_written_arguments,
    written_arguments,
)


@dataclass(frozen=True)
class Functional:
    """The pure counterpart of a mutating op; it takes the same arguments except `dropped`."""

    op: OpOverload
    dropped: frozenset[str]
    renamed: tuple[tuple[str, str], ...] = ()

    def arguments(
        self, of: OpOverload, named: OpKeywords, source: SourceLine | None = None
    ) -> OpKeywords:
        """The arguments of this op, given those of a call of the mutating op `of` at `source`."""
        defaults = {p.name: p.default_value for p in of._schema.arguments if p.has_default_value()}
        required = {p.name for p in self.op._schema.arguments if not p.has_default_value()}
        filled = {name: value for name, value in defaults.items() if name in required}
        names = dict(self.renamed)
        if "generator" in self.dropped and named.get("generator") is not None:
            raise CaptureError(
                str(of),
                "its pure counterpart draws from the default generator, not from the one given",
                "draw outside the compiled function, or by torch.randint",
                source,
            )
        kept = {name: value for name, value in named.items() if name not in self.dropped}
        return {names.get(name, name): value for name, value in {**filled, **kept}.items()}


def changes_metadata_only(op: OpOverload) -> bool:
    """Whether the op is like `t_` or `squeeze_`: the tensor becomes a view of what it was."""
    return torch.Tag.inplace_view in op.tags


_KEEP_HISTORY = frozenset(f"aten::logical_{name}_" for name in ("and", "or", "xor", "not"))


def keeps_history(op: OpOverload) -> bool:
    """Whether autograd takes the result for not differentiable but keeps the tensor's history."""
    return op._schema.name in _KEEP_HISTORY


def written_by(op: OpOverload, named: dict[str, object]) -> tuple[str, ...]:
    """The arguments that a call of `op` writes to, declared in its schema or not."""
    declared = tuple(name for name in written_arguments(op) if named.get(name) is not None)
    return declared + implicitly_written_arguments(op, named)


@functools.cache
def functional_variant(op: OpOverload) -> Functional | None:
    """The pure op that returns the results of `op`, then the new value of each written argument."""
    if op in _BY_HAND:
        return _BY_HAND[op]
    written = written_arguments(op)
    outs = frozenset(a.name for a in op._schema.arguments if a.is_out)
    for packet in _candidate_packets(op):
        for name in packet.overloads():
            candidate: OpOverload = getattr(packet, name)
            if candidate._schema.is_mutable or not _same_arguments(op, candidate, outs):
                continue
            if returns_fit(op, candidate, len(written)):
                return Functional(candidate, outs)
    return None


_BY_HAND = {
    # The overload's name `from` is a Python keyword, which the code of a graph cannot contain.
    getattr(torch.ops.aten.random_, "from"): Functional(
        torch.ops.aten.randint_like.low_dtype,
        frozenset({"generator"}),
        (("from", "low"), ("to", "high")),
    ),
    # For real tensors, `conj_physical` returns its argument itself.
    torch.ops.aten.conj_physical_.default: Functional(
        torch.ops.aten._conj_physical.default, frozenset()
    ),
    # Their schemas do not declare that they write to running statistics.
    torch.ops.aten.native_batch_norm.default: Functional(
        torch.ops.aten._native_batch_norm_legit_functional.default, frozenset()
    ),
    torch.ops.aten.cudnn_batch_norm.default: Functional(
        torch.ops.aten._batch_norm_with_update_functional.default,
        frozenset({"training"}),
        (("exponential_average_factor", "momentum"), ("epsilon", "eps")),
    ),
}


def _candidate_packets(op: OpOverload) -> list[OpOverloadPacket]:
    namespace, _, name = op._schema.name.partition("::")
    if namespace != "aten":
        return []
    names = [name, name + "_functional"]
    if name.startswith("__i") and name.endswith("__"):
        names.append("__" + name[3:])
    elif name.endswith("_"):
        names += [name[:-1], name + "functional"]
    aten = torch.ops.aten
    return [getattr(aten, each) for each in names if hasattr(aten, each)]


def _same_arguments(op: OpOverload, candidate: OpOverload, outs: frozenset[str]) -> bool:
    mine = [(a.name, str(a.real_type)) for a in op._schema.arguments if a.name not in outs]
    theirs = [(a.name, str(a.real_type)) for a in candidate._schema.arguments]
    return mine == theirs


def returns_fit(op: OpOverload, candidate: OpOverload, written: int) -> bool:
    """Whether `candidate` returns the results of `op` and a new value per written argument."""
    own = sum(1 for each in op._schema.returns if each.alias_info is None)
    return len(candidate._schema.returns) == own + written


def bind(op: OpOverload, args: tuple[object, ...], kwargs: dict[str, object]) -> OpKeywords:
    """The arguments of a call by name; those left to their defaults are absent."""
    named = {p.name: value for p, value in zip(op._schema.arguments, args, strict=False)}
    return {**named, **kwargs}


def unbind(
    op: OpOverload, named: dict[str, object]
) -> tuple[tuple[object, ...], dict[str, object]]:
    """Positional and keyword arguments of a call of `op`."""
    args: list[object] = []
    positional = True
    kwargs: dict[str, object] = {}
    for parameter in op._schema.arguments:
        if parameter.name not in named:
            positional = False
        elif parameter.kwarg_only or not positional:
            kwargs[parameter.name] = named[parameter.name]
        else:
            args.append(named[parameter.name])
    return tuple(args), kwargs
