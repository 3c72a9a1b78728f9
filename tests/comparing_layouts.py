"""Random programs on tensors of random layouts (`random_layouts.py`), in eager and compiled.

`compare(seed, target, order)` compares values and derivatives; cotangents have random layouts, too.

    python -m tests.comparing_layouts 0 5000       # seeds; says which differ
"""

from __future__ import annotations

import contextlib
import random
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from adjoint.options import Options
from tests.differentiation import bridged
from tests.random_layouts import LAYOUTS, ROUNDED, ZERO, Program, program


def _leaves(inputs: Sequence[Tensor]) -> list[Tensor]:
    return [each.detach().requires_grad_() for each in inputs]


def _cotangent(like: Tensor, seed: int) -> Tensor:
    """For `like`, in some layout."""
    draw = random.Random(f"{seed} {tuple(like.shape)}")
    values = torch.randn(
        like.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    made = torch.complex(values, values.cos()) if like.is_complex() else values
    names = [*LAYOUTS] if like.dim() else ["plain", "negative", "conjugate"]
    return LAYOUTS[draw.choice(names)](made.to(like.dtype))


def derivatives(
    function: Callable[..., Any],
    inputs: Sequence[Tensor],
    seed: int,
    order: int,
    cotangent: Callable[[Tensor, int], Tensor] = _cotangent,
) -> Any:
    """What the function returns, and what autograd makes of it, one order after another."""
    found: list[list[Tensor | None]] = []
    out = function(*inputs)
    found.append([out])
    for each in range(order):
        if not out.requires_grad:
            break
        gradients: Sequence[Tensor | None] = torch.autograd.grad(
            out, inputs, cotangent(out, seed + each), create_graph=True, allow_unused=True
        )
        found.append(list(gradients))
        parts = [g for g in gradients if g is not None and g.requires_grad]
        if not parts:
            break
        out = sum(_real((part * cotangent(part, seed + 7)).sum()) for part in parts)
    return found


def _real(x: Tensor) -> Tensor:
    """A real number that depends on both parts of a complex one, and has no kink."""
    return x.real + x.imag if x.is_complex() else x


def differences(mine: Any, theirs: Any, truth: Any, rounded: float) -> Iterator[str]:
    """What a user would see.  `truth`: the same in double precision, to say how far eager is."""
    # Whether a gradient keeps a history that gives nothing but zeros depends on data in eager: that
    # of a product over one element does unless it is zero.
    lost = theirs[len(mine)] if len(mine) < len(theirs) else []
    if any(g is not None and bool((g.detach().abs() > ZERO).any()) for g in lost):
        yield f"{len(mine) - 1} orders in place of {len(theirs) - 1}"
    for order, (ours, eagers) in enumerate(zip(mine, theirs, strict=False)):
        for place, (one, other) in enumerate(zip(ours, eagers, strict=True)):
            where = f"order {order}, {place}"
            if one is None or other is None:
                if (one is None) != (other is None):
                    yield f"{where}: {one} in place of {other}"
                continue
            if (one.dtype, one.shape) != (other.dtype, other.shape):
                yield f"{where}: {one.dtype} {one.shape} in place of {other.dtype} {other.shape}"
                continue
            if order == 0 and one.requires_grad != other.requires_grad:
                yield f"{where}: requires_grad is {one.requires_grad}"
            wide = torch.complex128 if other.is_complex() else torch.float64
            ours_, eagers_ = one.detach().to(wide), other.detach().to(wide)
            finite = eagers_.isfinite()
            if not bool((ours_.isfinite() == finite).all()):
                yield f"{where}: infinite or nan elsewhere"
                continue
            if not bool(finite.any()):
                continue
            scale = 1 + float(eagers_[finite].abs().max())
            gap = float((ours_ - eagers_)[finite].abs().max())
            right = truth[order][place].detach().to(wide) if order < len(truth) else eagers_
            off = float((right - eagers_)[finite].abs().nan_to_num(0).max())
            if gap > rounded * scale + 10 * off:
                yield f"{where}: {gap:.3g} of {scale:.3g} apart"


def truth_of(made: Program, order: int) -> Any:
    """What the program and its derivatives are in double precision, of contiguous tensors.

    Eager itself is wrong for some strides, such as those of a cotangent of a batch norm that are
    both contiguous and channels-last.
    """
    return derivatives(
        made.function(),
        _leaves([_contiguous(_in_double(x)) for x in made.inputs]),
        made.seed,
        order,
        lambda like, seed: _contiguous(_cotangent(like, seed)),
    )


def _in_double(x: Tensor) -> Tensor:
    return x.detach().to(torch.complex128 if x.is_complex() else torch.float64)


def _contiguous(x: Tensor) -> Tensor:
    return x.resolve_neg().resolve_conj().contiguous()


def is_ill_conditioned(made: Program, expected: Any, order: int, rounded: float) -> bool:
    """Whether eager differs as much from itself, for inputs that differ by their rounding.

    The inputs stay equal where they are: a deviation or a norm of equal elements is rounding, of
    which a second derivative, or a maximum, makes anything.
    """
    for nudge in range(1, 5):
        inputs = [x * (1 + nudge * torch.finfo(x.dtype).eps) for x in made.inputs]
        found = derivatives(made.function(), _leaves(inputs), made.seed, order)
        if any(differences(found, expected, expected, rounded)):
            return True
    return False


def compare(seed: int, target: Any = "native", order: int = 2) -> tuple[Program, list[str]]:
    """The program of a seed, and how it differs from eager."""
    made = program(seed)
    function = made.function()
    try:
        expected = derivatives(function, _leaves(made.inputs), seed, order)
    except (RuntimeError, NotImplementedError):
        order = 1
        try:
            expected = derivatives(function, _leaves(made.inputs), seed, order)
        except (RuntimeError, NotImplementedError):
            order = 0
            expected = derivatives(function, made.inputs, seed, order)
    if made.smooth:
        # A second derivative of halves is mostly rounding.
        expected, order = expected[:2], min(order, 1)
    rounded = max(ROUNDED.get(each.dtype, 1e-7) for each in made.inputs)
    if any("float32" in line for line in made.lines):
        rounded = max(rounded, ROUNDED[torch.float32])
    if rounded > ROUNDED[torch.float64] and any("_norm(" in line for line in made.lines):
        # Of equal numbers, which expanded tensors hold, a norm divides by the root of its epsilon:
        # its second derivative is rounding times 1e7.
        expected, order = expected[:2], min(order, 1)
    truth = expected
    with contextlib.suppress(RuntimeError):  # What eager refuses in double precision.
        truth = truth_of(made, order)
    # Where eager has no derivative, nobody asks for one.
    leaves = _leaves(made.inputs) if order else [each.detach() for each in made.inputs]
    compiled = bridged(function, *leaves, options=Options(target=target, eager_rng=True))
    actual = derivatives(compiled, leaves, seed, order)
    found = list(differences(actual, expected, truth, rounded))
    if found and is_ill_conditioned(made, expected, order, rounded):
        return made, []
    return made, found


def _say(*lines: Any) -> None:
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()


def main(first: int, last: int, target: str) -> int:
    """Compare the programs of some seeds; how many differ."""
    wrong, start = 0, time.time()
    for seed in range(first, last):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made, found = compare(seed, target)
        except Exception:  # noqa: BLE001  (whatever it is, the user would see it)
            made, found = program(seed), [traceback.format_exc(limit=-6)]
        if found:
            wrong += 1
            _say(made, *found)
        if seed % 100 == 99:
            _say(f"seed {seed}: {wrong} differ, {time.time() - start:.0f} s")
    return wrong


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), *(sys.argv[3:] or ["native"]))))
