from __future__ import annotations

import torch

from adjoint.runtime.sharing import sharing


def test_tensors_apart_have_no_pattern() -> None:
    x, y = torch.zeros(3), torch.zeros(3)
    assert sharing([x, y], [0]) == ()
    # Memory that is not written to may be shared.
    assert sharing([x, x], []) == ()


def test_the_pattern_says_who_shares_written_memory() -> None:
    x = torch.zeros(4)
    first, last = x[:2], x[2:]
    assert sharing([first, last], [0]) != sharing([first, first], [0])
    assert sharing([first, last], [0]) == sharing([first, last, torch.zeros(1)], [0])
    assert sharing([first, 3, last], [0]) != ()


def test_storages_that_are_read_as_a_whole_are_part_of_it() -> None:
    x = torch.zeros(4)
    assert sharing([x[1:]], [], [0]) == ((1, 16),)
