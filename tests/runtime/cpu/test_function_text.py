from __future__ import annotations

from adjoint.runtime.cpu.function_text import FunctionText


def test_a_function_is_its_head_its_variables_and_its_lines_in_order() -> None:
    function = FunctionText("i64 @twice(i64 %x)")
    total = function.allocated("i64", "total")
    function.line(f"store i64 %x, ptr {total}")
    end = function.unique("end")
    function.go(f"label %{end}")
    function.label(end)
    loaded = function.do(f"load i64, ptr {total}")
    function.line(f"ret i64 {loaded}")
    assert function.text() == (
        "define internal i64 @twice(i64 %x) {\n"
        "entry:\n"
        "  %total1 = alloca i64\n"
        "  store i64 %x, ptr %total1\n"
        "  br label %end2\n"
        "end2:\n"
        "  %v3 = load i64, ptr %total1\n"
        "  ret i64 %v3\n"
        "}\n"
    )
