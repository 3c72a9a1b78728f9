from __future__ import annotations

import pytest
import torch

from adjoint.options import Options
from adjoint.runtime import glue
from adjoint.runtime.cpu import callables, engine, products, residents, tiles
from adjoint.runtime.cpu.residents import key_of
from adjoint.runtime.plans import interpreter
from tests.differentiation import bridged
from tests.parity import leaf


def test_programs_need_no_other_glue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is compiled as glue for a program with tiles and products is in the list."""
    known = {key_of(text, name) for text, name in glue.functions()}
    assert len(known) == len(glue.functions())
    needed: set[str] = set()
    load = engine.load_resident

    def recorded(text: str, name: str) -> int:
        needed.add(key_of(text, name))
        return load(text, name)

    monkeypatch.setattr(engine, "load_resident", recorded)
    # Another test may have loaded an exported program, which brought its glue along.
    monkeypatch.setattr(residents, "_BROUGHT", {})
    for cached in (callables.kernel_runner, tiles.tile_runner, products.gemm):
        cached.cache_clear()
    interpreter.interpreter.cache_clear()
    x, w = leaf(600, 8), leaf(8, 8)
    native = Options(target="native")
    program = bridged(lambda x, w: (torch.tanh(x @ w) @ w).sin(), x, w, options=native)
    program(x, w).sum().backward()
    assert needed
    assert needed <= known
