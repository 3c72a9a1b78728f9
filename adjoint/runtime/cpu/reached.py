"""Which gradients of an autograd node the current backward pass needs, asked in native code.

Asked in Python, the question costs a new object for each input of the node, in every backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import cast

from adjoint.runtime.cpu.callables import builtin_maker, words_of
from adjoint.runtime.cpu.externals import external
from adjoint.runtime.cpu.residents import resident
from adjoint.torch_private.handles import NODE_FUNCTION, node_offset

REACHED = "adjoint.reached"

# `self` is the address of a word: the bytes from the address of a node's Python object to that of
# the node.  The arguments are the object and the number of its inputs.
REACHED_TEXT = f"""\
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare zeroext i1 @{NODE_FUNCTION}(ptr, i64)

define ptr @adjoint.reached(ptr %self, ptr %args, i64 %count) {{
entry:
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %offset = load i64, ptr %words
  %object = load ptr, ptr %args
  %number.at = getelementptr ptr, ptr %args, i64 1
  %number = load ptr, ptr %number.at
  %inputs = call i64 @PyLong_AsLongLong(ptr %number)
  %node.at = getelementptr i8, ptr %object, i64 %offset
  %node = load ptr, ptr %node.at
  %flags = alloca i8, i64 %inputs
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i.next, %ask ]
  %found = phi i64 [ 0, %entry ], [ %found.next, %ask ]
  %more = icmp slt i64 %i, %inputs
  br i1 %more, label %ask, label %asked
ask:
  %is.reached = call zeroext i1 @{NODE_FUNCTION}(ptr %node, i64 %i)
  %flag = zext i1 %is.reached to i8
  %flag.at = getelementptr i8, ptr %flags, i64 %i
  store i8 %flag, ptr %flag.at
  %one = zext i1 %is.reached to i64
  %found.next = add i64 %found, %one
  %i.next = add i64 %i, 1
  br label %test
asked:
  %result = call ptr @PyTuple_New(i64 %found)
  %failed = icmp eq ptr %result, null
  br i1 %failed, label %end, label %next
next:
  %n = phi i64 [ 0, %asked ], [ %n.next, %passed ]
  %place = phi i64 [ 0, %asked ], [ %place.next, %passed ]
  %left = icmp slt i64 %n, %inputs
  br i1 %left, label %look, label %end
look:
  %known.at = getelementptr i8, ptr %flags, i64 %n
  %known = load i8, ptr %known.at
  %is.in = icmp ne i8 %known, 0
  br i1 %is.in, label %add, label %passed
add:
  %index = call ptr @PyLong_FromLongLong(i64 %n)
  %set = call i32 @PyTuple_SetItem(ptr %result, i64 %place, ptr %index)
  %place.more = add i64 %place, 1
  br label %passed
passed:
  %place.next = phi i64 [ %place, %look ], [ %place.more, %add ]
  %n.next = add i64 %n, 1
  br label %next
end:
  ret ptr %result
}}
"""


@functools.cache
def asks_natively() -> bool:
    """Whether torch has the function, and nodes are where they are looked for."""
    return external(NODE_FUNCTION) is not None and node_offset() is not None


@functools.cache
def reached_inputs() -> Callable[[object, int], tuple[int, ...]] | None:
    """Which inputs of a node get their gradients used, given its object and how many there are.

    To be called while the backward of the node runs.  None if it has to be asked in Python.
    """
    offset = node_offset()
    if offset is None or not asks_natively():
        return None
    try:
        code = resident(REACHED_TEXT, REACHED)
    except ImportError:  # There is no LLVM, and the exported program did not bring the function.
        return None
    words = words_of(offset)
    _WORDS.append(words)
    make = builtin_maker(code, b"reached", b"Inputs whose gradients are used.")
    return cast("Callable[[object, int], tuple[int, ...]]", make(words.ctypes.data))


# Callables refer to their words by address.
_WORDS: list[object] = []
