"""Native functions as Python callables, made of machine code alone.

A call through ctypes takes microseconds, as long as a small kernel.  CPython calls its own built-in
functions by a plain C signature; here that function is generated, too.  It reads integers off its
arguments, releases the interpreter's lock and continues in native code.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable

from adjoint.runtime.cpu.residents import resident

# The arguments are an array of objects (Include/methodobject.h).
_METH_FASTCALL = 0x0080

# `self` is the address of five words, the first arguments of `@{target}`.  The third is the table
# that addresses are stored in.  The last argument of a call becomes the last of `@{target}`.
_TEXT = """\
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyErr_Occurred()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)

define ptr @{name}(ptr %self, ptr %args, i64 %count) {{
entry:
  %run = call ptr @PyLong_AsVoidPtr(ptr %self)
  %p1 = getelementptr i64, ptr %run, i64 1
  %p2 = getelementptr i64, ptr %run, i64 2
  %p3 = getelementptr i64, ptr %run, i64 3
  %p4 = getelementptr i64, ptr %run, i64 4
  %a0 = load ptr, ptr %run
  %a1 = load i64, ptr %p1
  %table = load ptr, ptr %p2
  %a3 = load ptr, ptr %p3
  %a4 = load i64, ptr %p4
  %last = sub i64 %count, 1
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i.next, %next ]
  %value.before = phi i64 [ 0, %entry ], [ %value, %next ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %take, label %go
take:
  %from = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %from
  %value = call i64 @PyLong_AsLongLong(ptr %object)
  %odd = icmp eq i64 %value, -1
  br i1 %odd, label %check, label %keep
check:
  %error = call ptr @PyErr_Occurred()
  %bad = icmp ne ptr %error, null
  br i1 %bad, label %fail, label %keep
keep:
  %is.address = icmp slt i64 %i, %last
  br i1 %is.address, label %store, label %next
store:
  %to = getelementptr i64, ptr %table, i64 %i
  store i64 %value, ptr %to
  br label %next
next:
  %i.next = add i64 %i, 1
  br label %test
go:
  %state = call ptr @PyEval_SaveThread()
  %code = call i64 @{target}(ptr %a0, i64 %a1, ptr %table, ptr %a3, i64 %a4, i64 %value.before)
  call void @PyEval_RestoreThread(ptr %state)
  %result = call ptr @PyLong_FromLongLong(i64 %code)
  ret ptr %result
fail:
  ret ptr null
}}
"""


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


# Built-in functions refer to their definitions, which must stay.
_DEFINITIONS: list[_MethodDef] = []


@functools.cache
def _new() -> Callable[..., Callable[..., int]]:
    """CPython's constructor of built-in functions."""
    new = ctypes.pythonapi.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    return new


def called(text: str, target: str) -> tuple[str, str]:
    """The text with a function that CPython calls for `target`, and the name of that function."""
    name = f"{target}.called"
    return text + _TEXT.format(name=name, target=target), name


def runner(text: str, target: str) -> Callable[[int], Callable[..., int]]:
    """For a native function `target` that `text` defines, a maker of Python callables of it.

    The maker is given the address of five words: what to store where and how often, the table of a
    call's addresses, the list of steps and their number.  A callable takes these addresses, and one
    more integer that is passed on; it returns what `target` does.
    """
    code = resident(*called(text, target))
    definition = _MethodDef(b"run", code, _METH_FASTCALL, b"Run kernels.")
    _DEFINITIONS.append(definition)
    return lambda words: _new()(ctypes.addressof(definition), words, None)


# The first part of a native run: for each pair (address of a word, index) of %bindings, stores
# entry `index` of the call's address table in that word.  Continues at %step, or at %end if there
# are no steps.
STORE_ADDRESSES = """\
  %none = icmp eq i64 %bound, 0
  br i1 %none, label %bind.end, label %bind
bind:
  %b = phi i64 [ 0, %entry ], [ %b.next, %bind ]
  %pair = getelementptr { ptr, i64 }, ptr %bindings, i64 %b
  %place = load ptr, ptr %pair
  %from = getelementptr i64, ptr %pair, i64 1
  %slot = load i64, ptr %from
  %at = getelementptr i64, ptr %table, i64 %slot
  %value = load i64, ptr %at
  store i64 %value, ptr %place
  %b.next = add i64 %b, 1
  %b.more = icmp ult i64 %b.next, %bound
  br i1 %b.more, label %bind, label %bind.end
bind.end:
  %idle = icmp eq i64 %count, 0
  br i1 %idle, label %end, label %step
"""

RUNNER = f"""\
define internal i64 @adjoint.run(
    ptr %bindings, i64 %bound, ptr %table, ptr %steps, i64 %count, i64 %threads) {{
entry:
{STORE_ADDRESSES}
step:
  %s = phi i64 [ 0, %bind.end ], [ %s.next, %step ]
  %call = getelementptr {{ ptr, ptr }}, ptr %steps, i64 %s
  %function = load ptr, ptr %call
  %args.at = getelementptr i64, ptr %call, i64 1
  %args = load ptr, ptr %args.at
  call void %function(ptr %args, i64 %threads)
  %s.next = add i64 %s, 1
  %s.more = icmp ult i64 %s.next, %count
  br i1 %s.more, label %step, label %end
end:
  ret i64 0
}}
"""


# The function that runs kernels in order.
RUN = "adjoint.run"


@functools.cache
def kernel_runner() -> Callable[[int], Callable[..., int]]:
    """Makes callables that store a call's addresses and call a run of kernels in order."""
    return runner(RUNNER, RUN)
