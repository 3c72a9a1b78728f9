"""What kernels compute does not depend on how arguments lie in memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from adjoint.graph.contiguity import WITH_REQUIRED_LAYOUT
from adjoint.graph.evaluation import eager_callable

aten = torch.ops.aten
Call = tuple[list[Tensor], tuple[Any, ...]]


def real(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def layouts(tensor: Tensor) -> Iterator[Tensor]:
    """The same values in several layouts."""
    yield tensor
    turned = tuple(reversed(range(tensor.dim())))
    yield tensor.permute(turned).contiguous().permute(turned)
    if tensor.dim() == 4:
        yield tensor.contiguous(memory_format=torch.channels_last)
    if tensor.dim() == 5:
        yield tensor.contiguous(memory_format=torch.channels_last_3d)
    wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
    yield wide[..., ::2].copy_(tensor)


def group_norm() -> Call:
    return [real(3, 4, 2, 5), real(4), real(4)], (3, 4, 10, 2, 1e-5)


def group_norm_backward() -> Call:
    x, weight = real(3, 4, 2, 5), real(4)
    _, mean, rstd = torch.native_group_norm(x, weight, weight, 3, 4, 10, 2, 1e-5)
    return [real(3, 4, 2, 5), x, mean, rstd, weight], (3, 4, 10, 2, [True, True, True])


def weight_norm_backward() -> Call:
    v, g = real(3, 4), real(3, 1)
    return [real(3, 4), v, g, torch._weight_norm_interface(v, g, 0)[1]], (0,)


def layer_norm_backward() -> tuple[list[Any], tuple[Any, ...]]:
    x, weight = real(4, 3, 5), real(5)
    _, mean, rstd = torch.native_layer_norm(x, [5], weight, weight, 1e-5)
    return [real(4, 3, 5), x, [5], mean, rstd, weight, weight], ([True, True, True],)


def nll_backward() -> Call:
    x, target = real(2, 3, 2, 2), torch.randint(3, (2, 2, 2))
    return [real(2, 2, 2), x, target], (None, 0, -100, torch.tensor(8.0).double())


def adaptive_pool_backward() -> Call:
    x = real(2, 3, 4, 4, 4)
    out, places = aten.adaptive_max_pool3d(x, [2, 2, 2])
    return [torch.randn_like(out), x, places], ()


def fractional_pool_backward() -> Call:
    x = real(2, 3, 6, 6)
    out, places = aten.fractional_max_pool2d(x, [2, 2], [3, 3], torch.rand(2, 3, 2).double())
    return [torch.randn_like(out), x], ([2, 2], [3, 3], places)


def fractional_pool3d_backward() -> Call:
    x, size = real(2, 3, 5, 5, 5), [2, 2, 2]
    out, places = aten.fractional_max_pool3d(x, size, [3, 3, 3], torch.rand(2, 3, 3).double())
    return [torch.randn_like(out), x], (size, [3, 3, 3], places)


def bag() -> tuple[list[Any], tuple[Any, ...]]:
    return [real(6, 3), torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2])], (
        False,
        0,
        False,
        real(4),
    )


def bag_gradient_of_weights() -> Call:
    (weight, indices, offsets), _ = bag()
    return [real(2, 3), weight, indices, offsets, torch.tensor([0, 0, 1, 1])], (0,)


def bag_gradient() -> Call:
    (weight, indices, offsets), rest = bag()
    _, _, sizes, most = aten._embedding_bag(weight, indices, offsets, *rest)
    given = [real(2, 3), indices, offsets, torch.tensor([0, 0, 1, 1]), sizes, most]
    return given, (6, False, 0, False, rest[-1])


def distances() -> Call:
    return [real(4, 3)], (2.0,)


def distances_backward() -> Call:
    x = real(4, 3)
    return [real(6), x], (2.0, aten._pdist_forward(x, 2.0))


CALLS = {
    aten._embedding_bag.default: bag,
    aten._embedding_bag_backward.default: bag_gradient,
    aten._embedding_bag_per_sample_weights_backward.default: bag_gradient_of_weights,
    aten._pdist_forward.default: distances,
    aten._pdist_backward.default: distances_backward,
    aten.native_group_norm.default: group_norm,
    aten.native_group_norm_backward.default: group_norm_backward,
    aten._weight_norm_interface_backward.default: weight_norm_backward,
    aten.native_layer_norm_backward.default: layer_norm_backward,
    aten.nll_loss2d_backward.default: nll_backward,
    aten.adaptive_max_pool3d_backward.default: adaptive_pool_backward,
    aten.fractional_max_pool2d_backward.default: fractional_pool_backward,
    aten.fractional_max_pool3d_backward.default: fractional_pool3d_backward,
}


def relaid(args: list[Any]) -> Iterator[list[Any]]:
    """The arguments, with one of them and then two of them in each layout."""
    places = [place for place, each in enumerate(args) if isinstance(each, Tensor) and each.dim()]
    for one, other in itertools.combinations_with_replacement(places, 2):
        for first, second in itertools.product(layouts(args[one]), layouts(args[other])):
            given = list(args)
            given[other], given[one] = second, first
            yield given


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_results_do_not_depend_on_layouts(op: Any) -> None:
    torch.manual_seed(0)
    tensors, rest = CALLS[op]()
    args = [*tensors, *rest]
    expected = op(*args)
    for given in relaid(args):
        # An embedding bag says what else it returns by the algorithm that it takes.
        actual, wanted = eager_callable(op)(*given), expected
        if op is aten._embedding_bag.default:
            actual, wanted = actual[0], wanted[0]
        torch.testing.assert_close(actual, wanted)


def test_each_is_tested() -> None:
    assert CALLS.keys() == WITH_REQUIRED_LAYOUT.keys()


@pytest.mark.parametrize("op", CALLS, ids=str)
def test_the_kernel_itself_does_not_look(op: Any) -> None:
    """If this fails, torch has mended the kernel."""
    torch.manual_seed(0)
    tensors, rest = CALLS[op]()
    args = [*tensors, *rest]
    expected = op(*args)

    def is_wrong(given: list[Any]) -> bool:
        try:
            torch.testing.assert_close(op(*given), expected)
        except (AssertionError, RuntimeError):
            return True
        return False

    assert any(map(is_wrong, relaid(args)))
