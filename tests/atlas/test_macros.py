from __future__ import annotations

import pytest

from adjoint.atlas.macros import without_alternatives, without_conditions, without_macros


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class C10_API DataPtr {", "class         DataPtr {"),
        ("struct TORCH_API A : public B {", "struct           A : public B {"),
        ("NPY_NO_EXPORT int\nf(void) {", "              int\nf(void) {"),
        ("  API_MARK Type *name(int);", "           Type *name(int);"),
        ('DEPRECATED_FOR("f") inline int g();', "                    inline int g();"),
        ("void C10_API warn(int x);", "void         warn(int x);"),
        ("API_EXPORT(const char *)\nname(int x) {", "           const char * \nname(int x) {"),
        ("class API_EXPORT(Name) : public Other {", "class            Name  : public Other {"),
        ("class API_EXPORT(Name : public Other) {", "class            Name : public Other  {"),
        ("REGISTER_THING(a, b(c))\nint x;", "                       \nint x;"),
        ("CHECK_ALL(f(g(1)),\n  TEXT)\nint x;", "                  \n       \nint x;"),
        ("int f() const API_NOEXCEPT;", "int f() const             ;"),
        ("int f() API_NOEXCEPT override {", "int f()              override {"),
        ("struct A { API_MARK A(int) : x() {} };", "struct A {          A(int) : x() {} };"),
        ("class A { API_MARK ~A(); };", "class A {          ~A(); };"),
        ("const Device API_REF device;", "const Device         device;"),
        ("typedef List<int> API_REF type;", "typedef List<int>         type;"),
        ("Scalar *API_RESTRICT a = b;", "Scalar *             a = b;"),
        ("API_UNROLL\nfor (;;) {}", "          \nfor (;;) {}"),
        ("void f(List a = {}, Pair b = {0, 1});", "void f(List a = 0 , Pair b = 0     );"),
        ("x = typename A<B>::type(y);", "x =          A<B>::type(y);"),
    ],
)
def test_marks_in_front_of_declarations_are_blanked(text: str, expected: str) -> None:
    assert without_macros(text.encode()).decode() == expected


@pytest.mark.parametrize(
    "text",
    [
        "#define SOME_MACRO int x\n",
        "#define A \\\n  SOME_MACRO int x\n",
        "// See SOME_MACRO int x\n/* SOME_MACRO\n   SOME_MACRO int x */",
        'f("SOME_MACRO int x");',
        "DWORD value;",
        "FILE *file;",
        "x = SOME_CONSTANT;",
        "TEST(Suite, Name)\n{ f(); }",
        "SOME_CALL(a, b);",
        "enum { FIRST_ONE, SECOND_ONE };",
        "class Plain { int x; };",
        "BOOL valid(int x);",
        "const DWORD value = 1;",
        "template <typename T, typename... U> void f();",
        "y = SOME_CALL(a)\n    .b();",
        "int x[] = {0, 1};",
    ],
)
def test_everything_else_stays(text: str) -> None:
    assert without_macros(text.encode()).decode() == text


def test_conditions_are_blanked_and_their_branches_stay() -> None:
    text = b"#if A\nint x;\n# else\nint y;\n#endif\n#define B 1\n"
    assert without_conditions(text) == b"     \nint x;\n      \nint y;\n      \n#define B 1\n"


def test_the_first_branch_of_a_choice_can_stand_alone() -> None:
    text = b"#if A\nint x;\n#  if B\nint y;\n#elif C\nint z;\n#endif\n#else\nint w;\n#endif\nint v;"
    left = without_alternatives(text)
    assert len(left) == len(text)
    assert left.split() == b"int x; int y; int v;".split()
