from __future__ import annotations

from pathlib import Path

import pytest
import torch

from adjoint.emit.llvm import emit_module
from adjoint.loops.expressions import (
    Cast,
    Counter,
    Extent,
    Guarded,
    Load,
    Name,
    apply,
    constant,
    integer,
)
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Loop,
    Mapping,
    Merge,
    Store,
    Update,
)
from tests.kernels import (
    HERE,
    N,
    at,
    kernel,
    over,
    pointwise,
    reversing,
    run,
)

F32, F64, I64 = torch.float32, torch.float64, torch.int64
J = Counter("j")


def lines(text: str) -> str:
    """Without the header that all modules share."""
    return text[text.index("define internal void @kernel.0") :] + "\n"


def golden(name: str) -> str:
    return (Path(__file__).parent / "golden" / f"{name}.ll").read_text()


def test_golden_pointwise() -> None:
    x, y = at("x", F32), at("y", torch.bfloat16)
    made = pointwise(x * 2 + Cast(y, F32), {"x": F32, "y": torch.bfloat16})
    assert lines(emit_module([made])) == golden("pointwise")


def test_golden_parallel_sum() -> None:
    total = Name("sum", F64)
    row = Extent("m")
    inner = over(row, Update("sum", "add", Load("x", HERE * row + J, F64)), counter="j")
    body = over(
        N,
        Accumulator("sum", constant(0, F64)),
        inner,
        Store("out", HERE, total),
        mapping=Mapping.PARALLEL,
    )
    made = kernel([body], {"x": F64}, {"out": F64}, ["n", "m"])
    assert lines(emit_module([made])) == golden("parallel_sum")


def test_golden_guarded_scatter() -> None:
    place = at("place", I64)
    value = Guarded(place < 3, Load("x", place, F32), constant(0, F32))
    made = kernel(
        [over(N, Merge("out", place, "add", value))],
        {"x": F32, "place": I64},
        {"out": F32},
    )
    assert lines(emit_module([made])) == golden("guarded_scatter")


@pytest.mark.parametrize("dtype", [F32, torch.bool, torch.bfloat16], ids=str)
def test_memory_of_a_team_is_a_threads_own(dtype: torch.dtype) -> None:
    made = reversing(5, dtype)
    buffers = {"x": torch.arange(500) % 3, "out": torch.zeros(500)}
    buffers = {name: each.to(dtype) for name, each in buffers.items()}
    for threads in (1, 2):
        ours = run(made, buffers, {"n": 100}, threads)["out"]
        assert torch.equal(ours, buffers["x"].view(100, 5).flip(1).reshape(-1))


def test_a_value_used_twice_is_computed_once() -> None:
    e = apply("exp", at("x", F32))
    made = pointwise(e * e + e, {"x": F32})
    assert lines(emit_module([made])).count("call float @adjoint.exp.f32") == 1


def test_what_is_guarded_is_not_shared_with_what_is_not() -> None:
    """A value first met inside a guard is computed again outside it."""
    x = at("x", F32)
    e = x * x
    value = Guarded(x > 0, e, constant(0, F32)) + e
    made = pointwise(value, {"x": F32})
    buffers = {"x": torch.tensor([-2.0, 0.0, 3.0]), "out": torch.zeros(3)}
    assert run(made, buffers, {"n": 3})["out"].tolist() == [4.0, 0.0, 18.0]


def test_a_guard_keeps_from_reading() -> None:
    """The offset that is not to be read would stop the process."""
    far = integer(1 << 48)
    value = Guarded(HERE < 0, Load("x", far, F32), constant(7, F32))
    made = pointwise(value, {"x": F32})
    buffers = {"x": torch.ones(1), "out": torch.zeros(4)}
    assert run(made, buffers, {"n": 4})["out"].tolist() == [7.0] * 4


def test_empty_loops_do_nothing() -> None:
    made = pointwise(at("x", F32), {"x": F32})
    buffers = {"x": torch.ones(4), "out": torch.zeros(4)}
    for count in (0, -3):
        assert run(made, buffers, {"n": count})["out"].tolist() == [0.0] * 4


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 3, 1000])
def test_threads_share_a_parallel_loop(threads: int, count: int) -> None:
    body = over(N, Merge("out", HERE, "add", constant(1, I64)), mapping=Mapping.PARALLEL)
    made = kernel([body, body_after()], {}, {"out": I64})
    buffers = {"out": torch.zeros(count + 1, dtype=I64)}
    out = run(made, buffers, {"n": count}, threads)["out"]
    assert out.tolist() == [2] * count + [0]


def body_after() -> Loop:
    """What stands after a parallel loop sees all that it wrote."""
    return over(N, Merge("out", HERE, "add", Load("out", HERE, I64)))


def test_parts_have_names_of_their_own() -> None:
    one = over(N, Assign("a", at("x", F32)), Store("out", HERE, Name("a", F32)))
    other = over(N, Assign("a", at("x", F32) * 2), Store("twice", HERE, Name("a", F32)))
    made = kernel([one, other], {"x": F32}, {"out": F32, "twice": F32})
    x = torch.arange(5.0)
    buffers = {"x": x, "out": torch.zeros(5), "twice": torch.zeros(5)}
    after = run(made, buffers, {"n": 5})
    assert torch.equal(after["out"], x)
    assert torch.equal(after["twice"], 2 * x)
