import pytest
import torch

from adjoint.rules import outputs
from adjoint.rules.outputs import differentiable_outputs
from adjoint.torch_private.fake import new_fake_mode

aten = torch.ops.aten


def test_torch_says_which_results_have_a_derivative() -> None:
    mode = new_fake_mode()
    with mode:
        x = torch.empty(3, 4)
    norm = differentiable_outputs(
        aten.native_layer_norm.default, (x, [4], None, None, 1e-5), {}, (x, x, x), [x], mode
    )
    assert norm == (True, False, False)
    assert differentiable_outputs(aten.sort.default, (x,), {}, (x, x), [x], mode) == (True, False)
    assert differentiable_outputs(aten.sort.default, (x,), {}, (x, x), [], mode) == (False, False)


def test_lists_are_told_apart_by_their_lengths() -> None:
    mode = new_fake_mode()
    with mode:
        x = torch.empty(4)
    for size, count in ((2, 2), (1, 4)):
        found = differentiable_outputs(aten.split.Tensor, (x, size), {}, [x] * count, [x], mode)
        assert found == (True,) * count


def test_a_mask_says_which_results_there_are() -> None:
    """Asked first without the gradient of a bias, and then with it."""
    mode = new_fake_mode()
    with mode:
        g, x, w = torch.empty(1, 3, 5), torch.empty(1, 2, 5), torch.empty(3, 2, 1)
    for mask in ([True, True, False], [True, True, True]):
        args = (g, x, w, [3], [1], [0], [1], False, [0], 1, mask)
        found = differentiable_outputs(
            aten.convolution_backward.default, args, {}, (x, w, g), [g], mode
        )
        assert found == tuple(mask)


def test_fakes_that_fail_for_empty_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "_KNOWN", {})
    mode = new_fake_mode()
    with mode:
        g, x, y = torch.empty(()), torch.empty(0, 3), torch.empty(0, 3)
    op = aten.mse_loss_backward.default
    assert differentiable_outputs(op, (g, x, y, 1), {}, x, [g, x, y], mode) == (True,)
