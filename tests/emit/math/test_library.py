"""The text as a whole: stable, complete, vectorised, and fit for a GPU."""

import llvmlite.binding as llvm
import pytest

from adjoint.emit.math import FUNCTIONS, definitions, symbol
from adjoint.loops.operators import MATH, OPERATORS
from adjoint.runtime.cpu import machines
from tests.emit.math.compiled import compiled, loop_text

EVERYTHING = [(name, dtype) for name in FUNCTIONS for dtype in ("f32", "f64")]
each = pytest.mark.parametrize(("name", "dtype"), EVERYTHING)


def test_each_function_once_in_a_stable_order() -> None:
    text = definitions([("log", "f64"), ("exp", "f32"), ("log", "f64")])
    assert text == definitions([("exp", "f32"), ("log", "f64")])
    assert text.count("define ") == 2
    assert symbol("exp", "f32") == "adjoint.exp.f32"


def test_every_math_function_of_kernels_has_a_definition() -> None:
    assert {name: OPERATORS[name].arity for name in MATH}.items() <= FUNCTIONS.items()


def test_an_unknown_function_is_refused() -> None:
    with pytest.raises(KeyError, match=r"no function 'exp' of 'f16'"):
        definitions([("exp", "f16")])


def test_all_of_it_is_one_module() -> None:
    llvm.parse_assembly(definitions(EVERYTHING)).verify()


@each
def test_a_loop_is_vectorised(name: str, dtype: str) -> None:
    if machines.host().cpu == "x86-64-v2":
        pytest.skip("without fused multiplications LLVM sees no gain in it")
    assert "vector.body" in compiled(name, dtype).optimised


@each
def test_a_gpu_needs_nothing_else(name: str, dtype: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    target = llvm.Target.from_triple("nvptx64-nvidia-cuda")
    machine = target.create_target_machine(cpu="sm_90", opt=3)
    module = llvm.parse_assembly(loop_text(name, dtype))
    module.triple = "nvptx64-nvidia-cuda"
    # Only inlining: what is left are intrinsics, which the target must know.
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    ptx = machine.emit_assembly(module)
    assert ".extern" not in ptx
    assert "call" not in ptx
