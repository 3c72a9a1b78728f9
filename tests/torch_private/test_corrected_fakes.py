from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves, tree_map

from adjoint.torch_private.corrected_fakes import CORRECTED, NEAREST, fake_call
from adjoint.torch_private.fake import new_fake_mode
from tests.versions import TORCH

aten = torch.ops.aten
HALF, SINGLE = torch.bfloat16, torch.float32


def made(*shape: int, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    return torch.rand(shape).to(dtype)


def turned(*shape: int) -> torch.Tensor:
    return made(*reversed(shape)).permute(*reversed(range(len(shape))))


def channels_last(*shape: int) -> torch.Tensor:
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return made(*shape).to(memory_format=formats[len(shape)])


# Both orders of dimensions are possible for these two; for those, sizes of one decide.
TWO_ORDERS = (made(4, 3, 5).transpose(0, 1), turned(4, 5) + 1)
ONE_ORDER = (made(1, 1, 5), made(4, 3, 5).transpose(0, 1))
NORMALIZED: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.native_batch_norm.default, (None, None, None, None, True, 0.1, 1e-5)),
    (aten._native_batch_norm_legit.no_stats, (None, None, True, 0.1, 1e-5)),
    (
        aten._native_batch_norm_legit_no_training.default,
        (None, None, made(4), made(4), 0.1, 1e-5),
    ),
    (
        aten._native_batch_norm_legit_functional.default,
        (None, None, made(4), made(4), True, 0.1, 1e-5),
    ),
]
MEAN = made(2, 2)
MIXED_BATCH = (made(3, 4, dtype=HALF), made(4), made(4))
MIXED_MSE = (made(), made(4, dtype=HALF), made(4), 1)

# For each op that is corrected, a call of which torch's own fake says something else.
WRONG: list[tuple[Any, tuple[Any, ...]]] = [
    (aten.native_layer_norm.default, (made(3, 4, dtype=HALF), [4], made(4), None, 1e-5)),
    (aten.native_group_norm.default, (made(2, 4, 3, dtype=HALF), made(4), None, 2, 4, 3, 2, 1e-5)),
    (
        aten.native_group_norm_backward.default,
        (
            *(made(2, 4, 3, dtype=HALF), made(2, 4, 3, dtype=HALF), MEAN, MEAN, made(4)),
            *(2, 4, 3, 2, [True, True, True]),
        ),
    ),
    (aten.native_batch_norm.default, (*MIXED_BATCH, None, None, True, 0.1, 1e-5)),
    (aten._native_batch_norm_legit.no_stats, (*MIXED_BATCH, True, 0.1, 1e-5)),
    (
        aten._native_batch_norm_legit_no_training.default,
        (*MIXED_BATCH, made(4), made(4), 0.1, 1e-5),
    ),
    (
        aten._native_batch_norm_legit_functional.default,
        (*MIXED_BATCH, made(4), made(4), True, 0.1, 1e-5),
    ),
    (
        aten._native_batch_norm_legit_functional.default,
        (
            *(made(3, 4, dtype=HALF), None, None, made(4, dtype=HALF), made(4, dtype=HALF)),
            *(True, 0.1, 1e-5),
        ),
    ),
    (aten.mse_loss_backward.default, MIXED_MSE),
    (aten.mse_loss_backward.default, (made(), made(0, 3), made(0, 3), 1)),
    (aten.mse_loss_backward.default, (made(), turned(3, 4), made(3, 4), 1)),
    (aten.smooth_l1_loss_backward.default, (made(), made(4, dtype=HALF), made(4), 1, 1.0)),
    (aten.smooth_l1_loss_backward.default, (made(), made(0, 3), made(0, 3), 1, 1.0)),
    (aten.huber_loss_backward.default, (made(3, 4), turned(3, 4), turned(3, 4), 0, 1.0)),
    (aten.soft_margin_loss.default, (made(4, dtype=HALF), made(4), 1)),
    (aten.soft_margin_loss_backward.default, (made(), made(4, dtype=HALF), made(4), 1)),
    (aten.huber_loss.default, (made(4, dtype=HALF), made(4), 0, 1.0)),
    (aten.addr.default, (made(), made(2, dtype=HALF), made(3, dtype=HALF))),
    (aten.normal.Tensor_Tensor, (made(4, dtype=HALF), made(4))),
    (
        aten._softmax_backward_data.default,
        (made(4, dtype=HALF), made(4, dtype=HALF), 0, torch.float32),
    ),
    (
        aten._embedding_bag.default,
        (
            *(made(6, 2, dtype=HALF), torch.tensor([1, 2, 3]), torch.tensor([0, 1])),
            *(False, 0, False, made(3, dtype=HALF)),
        ),
    ),
    (aten.log_sigmoid_forward.default, (turned(3, 4),)),
    *((op, (turned(2, 4, 5), *rest)) for op, rest in NORMALIZED),
    (aten.roll.default, (channels_last(2, 3, 4, 5), [1], [2])),
    (aten.replication_pad3d.default, (channels_last(2, 3, 2, 4, 5), [1] * 6)),
    (aten.div.Tensor_mode, TWO_ORDERS),
    *(
        (op, TWO_ORDERS)
        for op in (
            aten.copysign.Tensor,
            aten.floor_divide.default,
            aten.special_xlog1py.default,
            aten.xlogy.Tensor,
        )
    ),
    *(
        (op, ONE_ORDER)
        for op in (
            aten.logaddexp.default,
            aten.logical_and.default,
            aten.logical_or.default,
            aten.logical_xor.default,
        )
    ),
    *(
        (op, (made(0, 2, *[3] * (1 + place // 2)), [4] * (1 + place // 2)))
        for place, op in enumerate(NEAREST)
    ),
]

# Of an op, arguments that have to be named.
NAMED: dict[Any, dict[str, Any]] = {aten.div.Tensor_mode: {"rounding_mode": "floor"}}

HEADS, ROWS = (1, 2, 8, 16), (1, 8, 2, 16)

# The same for kernels that only a GPU has.
WRONG_ON_A_GPU: list[tuple[Any, tuple[Any, ...]]] = [
    *(
        (
            aten._scaled_dot_product_efficient_attention.default,
            (made(*HEADS), made(*HEADS), made(*HEADS), None, True, dropout),
        )
        for dropout in (0.0, 0.5)
    ),
    (
        aten._efficient_attention_forward.default,
        (made(*ROWS), made(*ROWS), made(*ROWS), *[None] * 5, 0.0, 0, True),
    ),
]


def described(result: Any) -> list[Any]:
    """What kernels take for granted of each tensor; where there is one element, strides do not
    count.
    """
    return [
        (each.dtype, each.device, tuple(each.shape))
        + ((each.stride(),) if each.numel() > 1 else ())
        for each in tree_leaves(result)
        if isinstance(each, torch.Tensor)
    ]


def of_fakes(run: Any, args: tuple[Any, ...]) -> Any:
    mode = new_fake_mode()
    fakes = tree_map(
        lambda leaf: (
            mode.from_tensor(leaf, static_shapes=True) if isinstance(leaf, torch.Tensor) else leaf
        ),
        args,
    )
    with mode:
        return run(*fakes)


@pytest.mark.parametrize(("op", "args"), WRONG)
def test_a_corrected_fake_is_as_the_real_result(op: Any, args: tuple[Any, ...]) -> None:
    if TORCH < (2, 13) and args is MIXED_MSE:
        pytest.skip("torch 2.11 refuses mixed dtypes")
    named = NAMED.get(op, {})
    fake = of_fakes(lambda *fakes: fake_call(op, fakes, named), args)
    assert described(fake) == described(op(*args, **named))


@pytest.mark.skipif(TORCH < (2, 13), reason="torch's own fakes as of 2.13")
@pytest.mark.parametrize(("op", "args"), WRONG)
def test_torch_has_not_mended_its_own(op: Any, args: tuple[Any, ...]) -> None:
    """If this fails, the correction can go once older versions are no longer supported."""
    named = NAMED.get(op, {})
    try:
        fake = of_fakes(lambda *fakes: op(*fakes, **named), args)
    except (ZeroDivisionError, TypeError):
        return
    assert described(fake) != described(op(*args, **named))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize(("op", "args"), WRONG_ON_A_GPU)
def test_on_a_gpu(op: Any, args: tuple[Any, ...]) -> None:
    given = tree_map(lambda leaf: leaf.cuda() if isinstance(leaf, torch.Tensor) else leaf, args)
    fake = of_fakes(lambda *fakes: fake_call(op, fakes, {}), given)
    assert described(fake) == described(op(*given))


def test_each_correction_is_tested() -> None:
    assert {op for op, _ in WRONG + WRONG_ON_A_GPU} == set(CORRECTED)
