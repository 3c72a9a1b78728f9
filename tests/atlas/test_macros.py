from __future__ import annotations

import pytest

from adjoint.atlas.macros import without_conditions, without_macros


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
    ],
)
def test_everything_else_stays(text: str) -> None:
    assert without_macros(text.encode()).decode() == text


def test_conditions_are_blanked_and_their_branches_stay() -> None:
    text = b"#if A\nint x;\n# else\nint y;\n#endif\n#define B 1\n"
    assert without_conditions(text) == b"     \nint x;\n      \nint y;\n      \n#define B 1\n"
