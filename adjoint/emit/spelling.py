"""How LLVM spells types, operators and numbers."""

from __future__ import annotations

import struct

import torch

REGISTERS: dict[torch.dtype, str] = {
    torch.bool: "i1",
    torch.uint8: "i8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "half",
    # Computed in float, and rounded where it is stored or cast.
    torch.bfloat16: "float",
    torch.float32: "float",
    torch.float64: "double",
}

MEMORY = {**REGISTERS, torch.bool: "i8", torch.bfloat16: "i16"}

# Bytes.
SIZES = {"i8": 1, "i16": 2, "half": 2, "i32": 4, "float": 4, "i64": 8, "double": 8}

UNSIGNED = frozenset({torch.uint8, torch.bool})

FLOATING = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}

INTEGER = frozenset({"add", "sub", "mul", "and", "or", "xor"})

COMPARISONS = {
    # operator: floating-point, signed, unsigned
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}

INTRINSICS = {
    "sqrt": "sqrt",
    "floor": "floor",
    "ceil": "ceil",
    "trunc": "trunc",
    "round": "roundeven",
    "copysign": "copysign",
}

SUFFIX = {"half": "f16", "float": "f32", "double": "f64"}


def width(kind: str) -> int:
    """The bits of an integer type."""
    return int(kind[1:])


def literal(value: float | int | bool, dtype: torch.dtype) -> str:
    """A constant as LLVM writes it; a float is written as the double of the same value."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if not dtype.is_floating_point:
        return str(int(value))
    if dtype == torch.float16:
        bits = torch.tensor(float(value), dtype=torch.float16).view(torch.int16).item()
        return f"0xH{int(bits) & 0xFFFF:04X}"
    if dtype != torch.float64:
        value = torch.tensor(float(value), dtype=dtype).item()
    return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
