"""Reductions across the threads of a team: warp shuffles, then shared memory between warps.

`%lane` is the number of this thread in its team.  `%mask`, where a team is a part of a warp, has
the bits of the team's threads.
"""

from __future__ import annotations

import torch

from adjoint.emit.arithmetic import Callees
from adjoint.emit.atomics import AtomicBody
from adjoint.emit.spelling import REGISTERS, SIZES
from adjoint.loops.statements import Update
from adjoint.loops.teams import WARP
from adjoint.target import Target


class LaneBody(AtomicBody):
    def __init__(self, callees: Callees, team: int, target: Target) -> None:
        super().__init__(callees, target)
        self.team = team

    def reduce_lanes(self, name: str, partial: str, update: Update) -> None:
        """Combine the partial results of all lanes into the accumulator of every lane."""
        dtype, operator = update.value.dtype, update.operator
        kind, address = REGISTERS[dtype], self.named(name)
        value = self.line(f"load {kind}, ptr {partial}")
        step = min(self.team, WARP) // 2
        while step:
            value = self.combined(operator, value, self.from_lane(value, step, kind), dtype)
            step //= 2
        if self.team > WARP:
            value = self.across_warps(operator, value, dtype)
        old = self.line(f"load {kind}, ptr {address}")
        new = self.combined(operator, old, value, dtype)
        self.lines.append(f"  store {kind} {new}, ptr {address}")

    def from_lane(self, value: str, step: int, kind: str) -> str:
        """The value of the lane whose number differs in the bit `step`: a butterfly shuffle."""
        words = self.words(value, kind)
        mask = "%mask" if self.team < WARP else "-1"
        call = "call i32 @llvm.nvvm.shfl.sync.bfly.i32"
        moved = [self.line(f"{call}(i32 {mask}, i32 {w}, i32 {step}, i32 31)") for w in words]
        return self.from_words(moved, kind)

    def across_warps(self, operator: str, value: str, dtype: torch.dtype) -> str:
        """One value per warp, combined through shared memory by all lanes in the same order."""
        kind = REGISTERS[dtype]
        in_memory = "i8" if kind == "i1" else kind
        label = self.label("meet")
        warp = self.line(f"udiv i64 %lane, {WARP}")
        own = self.line(f"getelementptr i64, ptr addrspace(3) @meeting, i64 {warp}")
        first = self.line(f"and i64 %lane, {WARP - 1}")
        is_first = self.line(f"icmp eq i64 {first}, 0")
        stored = self.line(f"zext i1 {value} to i8") if kind == "i1" else value
        self.lines += [
            f"  br i1 {is_first}, label %{label}, label %{label}.all",
            f"{label}:",
            f"  store {in_memory} {stored}, ptr addrspace(3) {own}",
            f"  br label %{label}.all",
            f"{label}.all:",
        ]
        self.barrier()
        total = ""
        for other in range(self.team // WARP):
            address = self.line(f"getelementptr i64, ptr addrspace(3) @meeting, i64 {other}")
            part = self.line(f"load {in_memory}, ptr addrspace(3) {address}")
            part = self.line(f"trunc i8 {part} to i1") if kind == "i1" else part
            total = self.combined(operator, total, part, dtype) if total else part
        self.barrier()
        return total

    def words(self, value: str, kind: str) -> list[str]:
        """A value as 32-bit words, which is what shuffles exchange."""
        if kind in ("float", "half"):
            bits = f"i{8 * SIZES[kind]}"
            raw = self.line(f"bitcast {kind} {value} to {bits}")
            return [raw] if kind == "float" else [self.line(f"zext i16 {raw} to i32")]
        if kind in ("double", "i64"):
            raw = self.line(f"bitcast double {value} to i64") if kind == "double" else value
            high = self.line(f"lshr i64 {raw}, 32")
            return [self.line(f"trunc i64 {part} to i32") for part in (raw, high)]
        return [value] if kind == "i32" else [self.line(f"zext {kind} {value} to i32")]

    def from_words(self, words: list[str], kind: str) -> str:
        """The inverse of `words`."""
        match kind:
            case "float":
                return self.line(f"bitcast i32 {words[0]} to float")
            case "half":
                return self.line(f"bitcast i16 {self.line(f'trunc i32 {words[0]} to i16')} to half")
            case "double" | "i64":
                low, high = (self.line(f"zext i32 {word} to i64") for word in words)
                both = self.line(f"or i64 {low}, {self.line(f'shl i64 {high}, 32')}")
                return both if kind == "i64" else self.line(f"bitcast i64 {both} to double")
            case "i32":
                return words[0]
            case _:
                return self.line(f"trunc i32 {words[0]} to {kind}")

    def barrier(self) -> None:
        """Synchronize the team, and make its stores visible to all of its lanes."""
        if self.team > WARP:
            self.lines.append("  call void @llvm.nvvm.barrier0()")
        else:
            mask = "%mask" if self.team < WARP else "-1"
            self.lines.append(f"  call void @llvm.nvvm.bar.warp.sync(i32 {mask})")
