from __future__ import annotations

import torch

from tests.lower.test_nests import text


def test_axes_along_which_accesses_are_contiguous_are_one_loop() -> None:
    assert text(lambda x: x * 2, torch.ones(3, 4, 5)) == (
        "kernel kernel(b0: f32, b1: f32 written; chunks)\n"
        "    parallel for t in range(chunks):\n"
        "        vector for r in range(((60 * t) // chunks), ((60 * (t + 1)) // chunks)):\n"
        "            b1[r] = (b0[r] * 2.0)\n"
    )


def test_axes_along_which_an_access_is_not_contiguous_stay_two() -> None:
    made = text(lambda x: x[:, :4] * 2, torch.ones(3, 40))
    assert "b0[((r * 40) + i1)]" in made or "b0[((i0 * 40) + i1)]" in made


def test_costly_values_are_kept_for_a_later_phase_of_the_row() -> None:
    x = torch.arange(60.0).reshape(3, 20) / 60

    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return y / y.sum(1, keepdim=True)

    made = text(function, x)
    first, second = made.split("sum0.done = sum0")
    assert "exp(" in first
    assert "exp(" not in second
