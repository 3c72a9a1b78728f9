"""Torch's operators: their classes, their schemas, and which arguments they mutate.

`torch.ops` is public; the classes and schemas of its operators are not.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch._C import DispatchKey
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket

from adjoint.open_types import OpKeywords

__all__ = [
    "HigherOrderOperator",
    "OpOverload",
    "OpOverloadPacket",
    "chunked_cross_entropy",
    "dense_kernel",
    "depends_on_data",
    "fresh_results",
    "has_own_derivative",
    "implicitly_written_arguments",
    "is_composite",
    "named_arguments",
    "operator_by_name",
    "operator_name",
    "parameter_names",
    "recorded_loop",
    "schema_arguments",
    "written_arguments",
]


class _RecordedLoop(HigherOrderOperator):
    def __init__(self) -> None:
        super().__init__("recorded_loop")  # type: ignore[no-untyped-call]

    def __call__(self, condition: object, step: object, carried: object, others: object) -> object:
        return super().__call__(condition, step, carried, others)  # type: ignore[no-untyped-call]


# A `while_loop` whose body also returns values that are not carried, but stacked over all steps.
recorded_loop = _RecordedLoop()


def named_arguments(
    operator: OpOverload, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[str, object]:
    """The arguments of a call by their names in the schema; defaults are left out."""
    names = (argument.name for argument in operator._schema.arguments)
    return dict(zip(names, args, strict=False)) | dict(kwargs)


def fresh_results(operator: OpOverload, result: object) -> list[object]:
    """The results of a call that do not alias an argument."""
    returned = result if isinstance(result, tuple) else (result,)
    declared = zip(operator._schema.returns, returned, strict=False)
    return [value for spec, value in declared if spec.alias_info is None]


@functools.lru_cache(maxsize=4096)
def operator_name(operator: OpOverload) -> tuple[str, str, str]:
    """The qualified name of an operator, its overload, and a digest of its schema."""
    schema = operator._schema
    digest = hashlib.sha256(str(schema).encode()).hexdigest()[:16]
    return schema.name, operator._overloadname, digest


def operator_by_name(name: str, overload: str, digest: str) -> OpOverload:
    """The operator of this name and schema; raises `LookupError` if torch has none."""
    namespace, _, short = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace, None), short, None) if short else None
    found = getattr(packet, overload, None) if isinstance(packet, OpOverloadPacket) else None
    if not isinstance(found, OpOverload):
        raise LookupError(f"torch has no operator {name[:80]}.{overload[:80]}")
    if operator_name(found)[2] != digest:
        raise LookupError(f"{name}.{overload} takes other arguments in this torch")
    return found


@functools.lru_cache(maxsize=4096)
def _parameters(operator: OpOverload) -> tuple[tuple[str, bool, object], ...]:
    """Name, whether there is a default, and the default of each parameter of a schema."""
    return tuple(
        (each.name, each.has_default_value(), each.default_value)
        for each in operator._schema.arguments
    )


def schema_arguments(
    operator: OpOverload,
    args: Sequence[object],
    kwargs: Mapping[str, object],
    defaults: bool = True,
) -> OpKeywords:
    """The arguments of a call by their names in the schema, in its order.

    `defaults`: with those that the call leaves to their defaults.
    """
    named: dict[str, object] = {}
    for place, (name, has_default, default) in enumerate(_parameters(operator)):
        if place < len(args):
            named[name] = args[place]
        elif name in kwargs:
            named[name] = kwargs[name]
        elif has_default and defaults:
            named[name] = default
    return named


def parameter_names(operator: OpOverload) -> tuple[str, ...]:
    """The names of the parameters of an operator."""
    return tuple(name for name, _, _ in _parameters(operator))


def written_arguments(operator: OpOverload) -> tuple[str, ...]:
    """The names of the arguments that an operator mutates; empty if it is functional."""
    return tuple(
        argument.name
        for argument in operator._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )


_STATISTICS = ("running_mean", "running_var")
_UPDATES_STATISTICS = frozenset(
    {
        "aten::native_batch_norm",
        "aten::cudnn_batch_norm",
        "aten::miopen_batch_norm",
        "aten::batch_norm_update_stats",
        "aten::batch_norm_gather_stats",
        "aten::batch_norm_gather_stats_with_counts",
    }
)


def implicitly_written_arguments(
    operator: OpOverload, named: Mapping[str, object]
) -> tuple[str, ...]:
    """The names of arguments that a call mutates although the schema does not declare it.

    Batch norm updates its running statistics if `training` is true, or if it takes no `training`.
    """
    if operator._schema.name not in _UPDATES_STATISTICS or not named.get("training", True):
        return ()
    return tuple(name for name in _STATISTICS if named.get(name) is not None)


# Dispatch keys under which a library registers a derivative, or a definition by other ops that has
# one.
_DERIVED_BY = ("Autograd", "AutogradCPU", "AutogradCUDA", "CompositeImplicitAutograd")


@functools.cache
def is_composite(operator: OpOverload) -> bool:
    """Whether torch defines the op by other ops alone, so that eager autograd sees only those.

    An op that has kernels for a CPU or a GPU as well, such as `silu_backward`, is not composite.
    """
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    name = operator.name()
    return has_kernel(name, "CompositeImplicitAutograd") and not any(
        has_kernel(name, key) for key in ("CPU", "CUDA")
    )


def has_own_derivative(operator: OpOverload) -> bool:
    """Whether a derivative is registered; without one, eager records what the kernel runs, if that
    is torch code, and warns.  Every op of torch's own has one, if only to say that there is none.
    """
    if operator.namespace in ("aten", "prims"):
        return True
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    return any(has_kernel(operator.name(), key) for key in _DERIVED_BY)


def depends_on_data(op: OpOverload) -> bool:
    """Whether the size of a result, or a number that is returned, depends on values of tensors."""
    return bool({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output} & {*op.tags})


def dense_kernel(operator: HigherOrderOperator) -> Callable[..., object] | None:
    """The Python kernel of a higher-order operator, in ordinary ops."""
    return operator.py_kernels.get(DispatchKey.CompositeExplicitAutograd)


def chunked_cross_entropy() -> OpOverload | None:
    """The op of `linear_cross_entropy` without reduction; None in a torch without it.

    Torch defines the op when its module is first imported.
    """
    try:
        importlib.import_module("torch.nn.modules.linear_cross_entropy")
    except ImportError:
        return None
    packet = getattr(torch.ops.torch_nn, "_linear_cross_entropy_batch_chunked_no_reduction", None)
    return None if packet is None else packet.default
