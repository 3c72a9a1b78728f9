"""Random well-formed loop nests: native code against what they mean."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from adjoint.loops.expressions import (
    Counter,
    Expression,
    Extent,
    Guarded,
    Load,
    Name,
    apply,
    cast,
    constant,
    integer,
)
from adjoint.loops.show import show
from adjoint.loops.statements import (
    Accumulator,
    Assign,
    Kernel,
    Loop,
    Mapping,
    Merge,
    Statement,
    Store,
    Update,
)
from tests.kernels import kernel, meaning, run

# Every buffer has so many elements; offsets are taken modulo it.
SIZE = 12

READ = {"f": torch.float64, "g": torch.float32, "h": torch.bfloat16, "i": torch.int64}
WRITTEN = {"out": torch.float64, "single": torch.float32, "whole": torch.int64}

UNARY = ["neg", "abs"]
BINARY = ["add", "sub", "mul", "minimum", "maximum"]


class Writer:
    """Draws statements whose names, types and bounds are right."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.count = 0

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    def offset(self, counters: Sequence[str]) -> Expression:
        """Within any buffer: of counters, or read from memory."""
        value: Expression = integer(self.draw(st.integers(0, SIZE - 1)))
        for counter in (
            self.draw(st.lists(st.sampled_from(counters), max_size=2)) if counters else []
        ):
            value = value + Counter(counter) * self.draw(st.integers(-2, 3))
        if self.draw(st.integers(0, 3)) == 0:
            value = value + Load("i", apply("mod", value, integer(SIZE)), torch.int64)
        return apply("mod", value, integer(SIZE))

    def value(
        self, dtype: torch.dtype, counters: Sequence[str], names: Sequence[Name], depth: int = 3
    ) -> Expression:
        kind = self.draw(st.integers(0, 7)) if depth else self.draw(st.integers(0, 2))
        if kind == 0:
            return constant(self.draw(st.integers(-3, 3)), dtype)
        if kind == 1 and names:
            return cast(self.draw(st.sampled_from(names)), dtype)
        if kind <= 3:
            buffer = self.draw(st.sampled_from(sorted(READ)))
            return cast(Load(buffer, self.offset(counters), READ[buffer]), dtype)
        inner = [self.value(dtype, counters, names, depth - 1) for _ in range(2)]
        if kind == 4:
            return apply(self.draw(st.sampled_from(UNARY)), inner[0])
        if kind == 5:
            return apply("select", inner[0] < inner[1], inner[1], inner[0])
        if kind == 6:
            return Guarded(inner[0].differs(inner[1]), inner[0], inner[1])
        return apply(self.draw(st.sampled_from(BINARY)), *inner)

    def block(
        self, counters: list[str], names: list[Name], sums: list[Name], depth: int
    ) -> list[Statement]:
        made: list[Statement] = []
        names, sums = list(names), list(sums)
        for _ in range(self.draw(st.integers(1, 3))):
            kind = self.draw(st.integers(0, 5))
            if kind == 0 and depth:
                made.append(self.loop(counters, names, sums, depth))
            elif kind == 1:
                dtype = self.draw(st.sampled_from([torch.float64, torch.int64, torch.float16]))
                name = Name(self.fresh("a"), dtype)
                made.append(Assign(name.name, self.value(dtype, counters, names)))
                names.append(name)
            elif kind == 2 and depth:
                dtype = self.draw(st.sampled_from([torch.float64, torch.int64]))
                total = Name(self.fresh("sum"), dtype)
                made.append(Accumulator(total.name, self.value(dtype, counters, names)))
                made.append(self.loop(counters, names, [*sums, total], depth))
                names.append(total)
            elif kind == 3 and sums:
                total = self.draw(st.sampled_from(sums))
                operator = self.draw(st.sampled_from(["add", "minimum", "maximum"]))
                value = self.value(total.dtype, counters, names)
                made.append(Update(total.name, operator, value))
            else:
                made.append(self.write(counters, names))
        return made

    def write(self, counters: list[str], names: list[Name]) -> Statement:
        buffer = self.draw(st.sampled_from(sorted(WRITTEN)))
        offset = self.offset(counters)
        value = self.value(WRITTEN[buffer], counters, names)
        if self.draw(st.booleans()):
            return Store(buffer, offset, value)
        return Merge(buffer, offset, self.draw(st.sampled_from(["add", "maximum"])), value)

    def loop(
        self, counters: list[str], names: list[Name], sums: list[Name], depth: int
    ) -> Statement:
        counter = self.fresh("c")
        stops: list[Expression] = [integer(0), integer(3), Extent("n")]
        stop = self.draw(st.sampled_from(stops))
        body = self.block([*counters, counter], names, sums, depth - 1)
        return Loop(counter, integer(self.draw(st.integers(0, 1))), stop, tuple(body))


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    writer = Writer(draw)
    body = writer.block([], [], [], depth=3)
    return kernel(body, READ, WRITTEN, ["n"])


def agree(made: Kernel, extent: int) -> None:
    generator = torch.Generator().manual_seed(0)
    buffers = {
        name: torch.randint(-4, 5, (SIZE,), generator=generator).to(dtype)
        for name, dtype in {**READ, **WRITTEN}.items()
    }
    ours = run(made, buffers, {"n": extent})
    expected = meaning(made, buffers, {"n": extent})
    for name in buffers:
        torch.testing.assert_close(
            ours[name], expected[name], rtol=1e-12, atol=0, equal_nan=True, msg=show(made)
        )


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels(), st.integers(0, 5))
def test_random_nests(made: Kernel, extent: int) -> None:
    agree(made, extent)


@pytest.mark.slow
@settings(max_examples=1500, deadline=None, suppress_health_check=list(HealthCheck))
@given(kernels(), st.integers(0, 5))
def test_many_random_nests(made: Kernel, extent: int) -> None:
    agree(made, extent)


@pytest.mark.parametrize("mapping", list(Mapping))
def test_each_mapping_means_the_same(mapping: Mapping) -> None:
    j = Counter("j")
    x = Load("f", apply("mod", Counter("i") * 5 + j, integer(SIZE)), torch.float64)
    body = Loop(
        "i",
        integer(0),
        Extent("n"),
        (
            Accumulator("sum", constant(0, torch.float64)),
            Loop("j", integer(0), integer(7), (Update("sum", "add", x),)),
            Store("out", Counter("i"), Name("sum", torch.float64)),
        ),
        mapping,
    )
    agree(kernel([body], READ, WRITTEN, ["n"]), 9)
