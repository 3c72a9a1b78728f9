import pytest
import torch

import adjoint.torch_private.missing_fakes as missing_fakes
from adjoint.torch_private.fake import make_fake, new_fake_mode
from tests.parity import Route, check, plain

aten = torch.ops.aten


def test_the_sizes_of_a_ctc_loss_are_those_of_a_real_one() -> None:
    assert missing_fakes
    x, targets = torch.randn(6, 2, 4).log_softmax(-1), torch.tensor([[1, 2, 2], [1, 3, 2]])
    real = aten._ctc_loss(x, targets, [6, 5], [3, 2])
    mode = new_fake_mode()
    with mode:
        fake_x, fake_targets = torch.empty(6, 2, 4), torch.empty(2, 3, dtype=torch.int64)
        lengths = torch.empty(2, dtype=torch.int64)
        fake = aten._ctc_loss(fake_x, fake_targets, [6, 5], [3, 2])
        losses, ways = aten._ctc_loss(fake_x, fake_targets, lengths, lengths)
        back = aten._ctc_loss_backward(
            losses, fake_x, fake_targets, lengths, lengths, losses, ways, 0
        )
    assert [each.shape for each in fake] == [each.shape for each in real]
    assert losses.shape == (2,)
    assert ways.dim() == 3
    assert back.shape == x.shape


def test_how_many_differ_is_for_data_to_say() -> None:
    mode = new_fake_mode()
    x = make_fake(mode, torch.tensor([3, 1, 3]), False, "x")
    with mode:
        values, inverse = torch.ops.aten._unique.default(x, True, True)
    assert isinstance(values.shape[0], torch.SymInt)
    assert (values.dtype, inverse.shape) == (torch.int64, (3,))


def test_of_nothing_there_is_one_part() -> None:
    x = torch.empty(0, 3)
    with new_fake_mode():
        parts = torch.empty(0, 3).split(1)
        others = torch.empty(5, 3).split(2)
    assert [part.shape for part in parts] == [part.shape for part in x.split(1)]
    assert [part.shape[0] for part in others] == [2, 2, 1]


@pytest.mark.parametrize("route", list(Route))
def test_a_ctc_loss_whose_lengths_are_tensors(route: Route) -> None:
    def loss(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        targets = torch.tensor([[1, 2, 2], [1, 3, 2]])
        return torch.nn.functional.ctc_loss(x.log_softmax(-1), targets, lengths * 2, lengths)

    check(loss, lambda: (plain(6, 2, 4).requires_grad_(), torch.tensor([3, 2])), route)
