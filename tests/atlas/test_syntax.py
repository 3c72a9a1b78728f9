"""What the parsers of tree-sitter find, one language after another."""

from __future__ import annotations

from tests.atlas_trees import facts, kinds, needs_parsers

pytestmark = needs_parsers

CPP = """\
#include <vector>
#define FOO(x) x
namespace a { namespace b {
// A template.
template <typename T> class K : public Base {
 public:
  K();
  ~K() {}
  int f(int x) const { return x; }
  operator bool() const;
  T t_;
};
int K::h() { return 1; }
API_EXPORT int
PyArray_Foo(PyObject *x, int **y) {
  if (x) { for (;;) {} } else if (y) {}
  return bar(x) + N::q(1) + *reinterpret_cast<int*>(y);
}
TEST(Foo, Bar) { x(); }
static const int C = 3;
extern int v;
typedef struct { int a; } S;
typedef int (*fn)(int);
using V = std::vector<int>;
enum class E { A, B };
enum { LOOSE };
int proto(int);
int proto(int x) { throw std::runtime_error("no"); }
#pragma once
#pragma omp simd
}}
"""


def test_cpp() -> None:
    assert kinds(CPP, "C++") == {
        "FOO": ("macro", 2),
        "a": ("namespace", 3),
        "a::b": ("namespace", 3),
        "a::b::K": ("class", 5),
        "a::b::K::K": ("method", 7),
        "a::b::K::~K": ("method", 8),
        "a::b::K::f": ("method", 9),
        "a::b::K::operator bool": ("method", 10),
        "a::b::K::t_": ("field", 11),
        "a::b::K::h": ("method", 13),
        # A macro in front of a type does not hide the function, whose line is that of its name.
        "a::b::PyArray_Foo": ("function", 15),
        # `TEST(Foo, Bar) {}` is the call of a macro, and no function.
        "a::b::C": ("constant", 20),
        "a::b::v": ("variable", 21),
        "a::b::S": ("type", 22),
        "a::b::S::a": ("field", 22),
        "a::b::fn": ("type", 23),
        "a::b::V": ("type", 24),
        "a::b::E": ("enum", 25),
        "a::b::E::A": ("constant", 25),
        "a::b::E::B": ("constant", 25),
        "a::b::LOOSE": ("constant", 26),
        # The definition, not its prototype above it.
        "a::b::proto": ("function", 28),
    }
    found = facts(CPP, "C++")
    symbols = {symbol.name: symbol for symbol in found.symbols}
    assert symbols["a::b::K"].doc == "A template."
    assert symbols["a::b::PyArray_Foo"].nesting == 2
    assert symbols["a::b::K::f"].signature == "int f(int x) const"
    assert [(m.text, m.line) for m in found.messages] == [("no", 28)]
    assert [tuple(note) for note in found.notes] == [
        ("performance", "`#pragma omp simd`", 30),
        ("safety", "unchecked cast: `reinterpret_cast`", 17),
    ]


def test_uses_of_cpp_are_no_locals_and_no_definitions() -> None:
    uses = {use.name for use in facts(CPP, "C++").uses}
    assert {"bar", "N::q", "Base", "PyObject"} <= uses
    assert not uses & {"y", "PyArray_Foo", "proto"}


def test_a_macro_around_the_type_does_not_hide_a_function() -> None:
    source = (
        "API_EXPORT(const char *)\nname(int x) { return 0; }\n\nAPI_EXPORT(void)\nlater(int x);\n"
    )
    assert kinds(source, "C++") == {"name": ("function", 2), "later": ("function", 5)}


def test_words_of_a_language_are_no_names() -> None:
    halves = "int f(void) {\n#if A\n  if (x) {\n#else\n  for (;;) {\n#endif\n  }\n}\n"
    broken = f"{halves}int g(void) {{ return 0; }}\n"
    assert not {"if", "for", "while", "return"} & kinds(broken, "C").keys()
    assert "g" in kinds(broken, "C")


def test_a_header_of_cpp_is_known_by_its_content() -> None:
    assert facts("class A { public: template <class T> void f(T x); };\n", "C").language == "C++"
    assert facts("struct a { int b; };\n", "C").language == "C"


def test_cuda() -> None:
    source = "__global__ void add(float *x, int n) { __syncthreads(); atomicAdd(x, 1.f); }\n"
    assert kinds(source, "CUDA") == {"add": ("function", 1)}
    assert [note.what for note in facts(source, "CUDA").notes] == [
        "atomic: `atomicAdd`",
        "barrier of a block: `__syncthreads`",
    ]


def test_javascript() -> None:
    source = """\
import {a as b, c} from "./x.js";
/** Adds. */
export function add(p, q) { const z = b(p); return z; }
export class K extends c { m(x) { throw new Error("bad " + x); } static s = 1; }
export const F = (x) => x + 1, N = 3;
let v = require("./v").w; function* g() { eval("x"); }
"""
    assert kinds(source, "JavaScript") == {
        "add": ("function", 3),
        "K": ("class", 4),
        "K.m": ("method", 4),
        "K.s": ("field", 4),
        "F": ("function", 5),
        "N": ("constant", 5),
        "v": ("variable", 6),
        "g": ("function", 6),
    }
    found = facts(source, "JavaScript")
    assert found.symbols[0].doc == "Adds."
    assert [message.text for message in found.messages] == ["bad"]
    assert ("b", 3) in {(use.name, use.line) for use in found.uses}


def test_typescript() -> None:
    source = """\
interface I { a: number; m(): void }
type T = string | I;
enum E { A, B = 2 }
namespace N { export function f(x: T): I { return x as I; } }
abstract class A { private x: number = 1; abstract q(): void; }
"""
    assert kinds(source, "TypeScript") == {
        "I": ("interface", 1),
        "I.a": ("field", 1),
        "I.m": ("method", 1),
        "T": ("type", 2),
        "E": ("enum", 3),
        "E.A": ("constant", 3),
        "E.B": ("constant", 3),
        "N": ("namespace", 4),
        "N.f": ("function", 4),
        "A": ("class", 5),
        "A.x": ("field", 5),
        "A.q": ("method", 5),
    }


def test_rust() -> None:
    source = """\
//! Of the crate.
use std::fmt;
/// A point.
#[derive(Debug)]
pub struct P<T> { x: T }
enum Q { A, B(i32) }
trait Tr { fn t(&self); }
impl<T> P<T> { pub fn new(x: T) -> Self { unsafe { f(x) }; panic!("no {}", 1); } }
const C: i32 = 1;
static S: i32 = 2;
type A = i32;
macro_rules! mm { () => {} }
mod inner { pub fn g() {} }
"""
    assert kinds(source, "Rust") == {
        "P": ("struct", 5),
        "P::x": ("field", 5),
        "Q": ("enum", 6),
        "Q::A": ("constant", 6),
        "Q::B": ("constant", 6),
        "Tr": ("trait", 7),
        "Tr::t": ("method", 7),
        "P::new": ("method", 8),
        "C": ("constant", 9),
        "S": ("variable", 10),
        "A": ("type", 11),
        "mm": ("macro", 12),
        "inner": ("namespace", 13),
        "inner::g": ("function", 13),
    }
    found = facts(source, "Rust")
    assert found.purpose == "Of the crate."
    assert found.symbols[0].doc == "A point."
    assert [message.text for message in found.messages] == ["no {}"]


def test_go() -> None:
    source = """\
// Package p does.
package p

import "fmt"

type S struct{ X int }
type I interface{ M(int) error }
type A = int

const C = 1

var V = 3

// F is.
func F(x int) error {
\tif x > 0 {
\t\treturn fmt.Errorf("bad %d", x)
\t}
\treturn nil
}

func (s *S) M(k int) error { return nil }
"""
    assert kinds(source, "Go") == {
        "p": ("namespace", 2),
        "S": ("struct", 6),
        "S.X": ("field", 6),
        "I": ("interface", 7),
        "I.M": ("method", 7),
        "A": ("type", 8),
        "C": ("constant", 10),
        "V": ("variable", 12),
        "F": ("function", 15),
        "S.M": ("method", 22),
    }
    assert facts(source, "Go").purpose == "Package p does."
    assert [message.text for message in facts(source, "Go").messages] == ["bad %d"]


def test_what_cannot_be_parsed_is_named_and_the_rest_is_found() -> None:
    found = facts("int f(void) { return 0; }\n@@ nothing @@;\nint g(void) { return 1; }\n", "C")
    assert "first in line 2" in found.problems[0]
    assert {symbol.name for symbol in found.symbols} >= {"f", "g"}


def test_fields_of_go_are_named_by_their_types_too() -> None:
    source = "package p\n\ntype T struct {\n\ta, b int\n\tio.Reader\n\t*Other\n\tList[int]\n}\n"
    found = kinds(source, "Go")
    fields = {name: line for name, (kind, line) in found.items() if kind == "field"}
    assert fields == {"T.a": 4, "T.b": 4, "T.Reader": 5, "T.Other": 6, "T.List": 7}


def test_a_parameter_with_an_access_is_a_field_of_typescript() -> None:
    source = "class A {\n  constructor(private readonly x: number, y: string, public z?: B) {}\n}\n"
    found = kinds(source, "TypeScript")
    assert {name for name, (kind, _) in found.items() if kind == "field"} == {"A.x", "A.z"}


def test_branches_that_open_the_same_class_are_read_one_at_a_time() -> None:
    source = """
#ifdef A
struct X : Y {
  API_MARK X() = default;
#else
struct API_MARK X : Y {
#endif
  int f() const;
  int field;
};
"""
    found = kinds(source, "C++")
    assert found["X"] == ("struct", 3)
    assert found["X::f"] == ("method", 8)
    assert found["X::field"] == ("field", 9)


def test_an_operator_has_one_name_however_it_is_spaced() -> None:
    source = "struct A {};\nA operator + (A a, A b);\nA operator-(A a, A b);\n"
    assert {"operator+", "operator-"} <= kinds(source, "C++").keys()
    outside = "template <class T>\nA<T>& A<T>::operator=(const A<T>& other) { return *this; }\n"
    assert kinds(outside, "C++") == {"A::operator=": ("function", 2)}
    assert "operator<<" in kinds("A& operator<<(A& a, int b);\n", "C++")


def test_names_in_patterns_of_javascript_are_bound() -> None:
    source = "const {a, b: c, d = 1, ...e} = f;\nlet [g, , {h}] = i;\n"
    found = {name: kind for name, (kind, _) in kinds(source, "JavaScript").items()}
    assert found == {**dict.fromkeys("acde", "constant"), "g": "variable", "h": "variable"}
