"""ATen operators for which eager torch has to call another function to compute what a graph means.

A graph is pure, and any of its nodes may be differentiated.  The kernels of some operators assume a
memory layout without checking it (`contiguity.py`), return a view only for some strides, or lack a
derivative: `copy` and the functional random operators have none, `*_scatter` has none for complex
numbers, and that of `as_strided_scatter` is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from adjoint.graph.contiguity import WITH_REQUIRED_LAYOUT
from adjoint.open_types import Callee
from adjoint.torch_private.functorch import is_functorch_wrapper


def _copy(into: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if into.layout is not torch.strided:
        return into.clone().copy_(source, non_blocking)
    return _empty_like(into, source, into).copy_(into).copy_(source, non_blocking)


def strided_from_start(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    """`as_strided` with the offset counted from the first element of `x`, as in graphs: a value has
    no storage around it."""
    return x.as_strided(size, stride, x.storage_offset() + offset)


def _copied_from_start(
    x: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int = 0
) -> torch.Tensor:
    if x.dim() == 1 and x.stride() != (1,):
        x = x.contiguous()  # A cotangent may be expanded: what is flat in a graph is so in memory.
    return strided_from_start(x, size, stride, offset).clone(memory_format=torch.contiguous_format)


def _empty_like(like: torch.Tensor, *written: torch.Tensor) -> torch.Tensor:
    """An uninitialized tensor like `like`; under vmap, with the batch of the tensors `written` to
    it."""
    batched = next((each for each in written if is_functorch_wrapper(each)), None)
    if batched is not None:
        return batched.new_empty_strided(like.shape, like.stride(), dtype=like.dtype)
    return torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device=like.device)


def _scattered(view: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def scatter(
        x: torch.Tensor, new: torch.Tensor, *args: object, **kwargs: object
    ) -> torch.Tensor:
        copy = x.clone()
        written = _empty_like(copy, new).copy_(copy) if is_functorch_wrapper(new) else copy
        view(written, *args, **kwargs).copy_(new)
        return written

    return scatter


def _bernoulli(
    like: torch.Tensor, p: float = 0.5, *, generator: torch.Generator | None = None
) -> torch.Tensor:
    return like.clone().bernoulli_(p, generator=generator)


def _normal(
    like: torch.Tensor,
    mean: float = 0.0,
    std: float = 1.0,
    *,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    return like.clone().normal_(mean, std, generator=generator)


def _randint(like: torch.Tensor, low: int, high: int, **options: object) -> torch.Tensor:
    if options:
        drawn: torch.Tensor = torch.ops.aten.randint_like.low_dtype(like, low, high, **options)
        return drawn
    return like.clone().random_(low, high)


def _flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *args: object, **kw: object
) -> object:
    """The flash kernel divides by sizes and assumes contiguous rows.

    Eager selects another kernel for empty inputs and for rows that are not contiguous.
    """
    query, key, value = map(_with_contiguous_rows, (query, key, value))
    if query.numel() and key.numel() and value.numel():
        return _FLASH(query, key, value, *args, **kw)
    # The sum gives the result an autograd history.
    zero = 0 * (query.sum() + key.sum() + value.sum())
    result = query.new_zeros((*query.shape[:-1], value.shape[-1])) + zero
    return result, query.new_zeros(query.shape[:-1])


def _with_contiguous_rows(x: torch.Tensor) -> torch.Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


def _flash_attention_backward(
    cotangent: object,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    *args: object,
    **kw: object,
) -> object:
    if query.numel() and key.numel() and value.numel():
        query, key, value, out = map(_with_contiguous_rows, (query, key, value, out))
        return _FLASH_BACKWARD(cotangent, query, key, value, out, *args, **kw)
    return torch.zeros_like(query), torch.zeros_like(key), torch.zeros_like(value)


def _reduced_product(sparse: torch.Tensor, dense: torch.Tensor, reduce: str) -> object:
    """The kernel returns the indices that a backward needs only if an argument requires grad."""
    if torch.is_grad_enabled() and (sparse.requires_grad or dense.requires_grad):
        return _SPARSE_REDUCE(sparse, dense, reduce)
    with torch.enable_grad():
        results = _SPARSE_REDUCE(sparse, dense.detach().requires_grad_(), reduce)
    return tuple(each.detach() for each in results)


def _dense(
    x: torch.Tensor, dtype: torch.dtype | None = None, masked_grad: bool | None = None
) -> torch.Tensor:
    """The cotangent of a sparse tensor may already be dense, for which the op has no kernel."""
    return x.to_dense(dtype, masked_grad=masked_grad)


def _as_complex(x: torch.Tensor) -> torch.Tensor:
    """A cotangent may lie in memory in any way; the parts of a number have to be neighbours."""
    steps = x.stride()
    if steps[-1] != 1 or any(step % 2 for step in (*steps[:-1], x.storage_offset())):
        x = x.clone(memory_format=torch.contiguous_format)
    return torch.view_as_complex(x)


_SPARSE_REDUCE = torch.ops.aten._sparse_mm_reduce_impl.default
_FLASH = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
_FLASH_BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


# By operator: the function to call in its place.
EAGER_FUNCTIONS: dict[object, Callee] = {
    **WITH_REQUIRED_LAYOUT,
    # A kernel may return other strides than its fake (batch_norm of a transposed input), so that
    # what was a view of the fake needs a copy.
    torch.ops.aten.view.default: torch.reshape,
    torch.ops.aten._unsafe_view.default: torch.reshape,
    # A cotangent may carry a lazy conjugation or negation.
    torch.ops.aten.view_as_real.default: lambda x: torch.view_as_real(x.resolve_conj()),
    torch.ops.aten.view_as_complex.default: _as_complex,
    torch.ops.aten.view.dtype: lambda x, dtype: x.resolve_conj().resolve_neg().view(dtype),
    torch.ops.aten.copy.default: _copy,
    torch.ops.aten.bernoulli.p: _bernoulli,
    torch.ops.aten.normal_functional.default: _normal,
    torch.ops.aten._to_dense.default: _dense,
    _SPARSE_REDUCE: _reduced_product,
    _FLASH: _flash_attention,
    _FLASH_BACKWARD: _flash_attention_backward,
    torch.ops.aten.randint_like.low_dtype: _randint,
    torch.ops.aten._foreach_zero.default: lambda xs: [torch.zeros_like(x) for x in xs],
    torch.ops.aten.select_scatter.default: _scattered(torch.ops.aten.select.int),
    torch.ops.aten.slice_scatter.default: _scattered(torch.ops.aten.slice.Tensor),
    torch.ops.aten.diagonal_scatter.default: _scattered(torch.ops.aten.diagonal.default),
    torch.ops.aten.as_strided.default: strided_from_start,
    torch.ops.aten.as_strided_copy.default: _copied_from_start,
    torch.ops.aten.as_strided_scatter.default: _scattered(torch.ops.aten.as_strided.default),
}
