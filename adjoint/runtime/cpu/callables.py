"""Native functions as Python callables, made of machine code alone.

A call through ctypes takes microseconds, as long as a small kernel.  CPython calls its own built-in
functions by a plain C signature; here that function is generated, too.  It reads integers and
addresses of tensors off its arguments, releases the interpreter's lock and continues in native
code.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from adjoint.runtime.cpu.externals import external
from adjoint.runtime.cpu.residents import resident
from adjoint.torch_private.handles import TENSOR_FUNCTIONS, tensor_objects

# The arguments are an array of objects (Include/methodobject.h).
_METH_FASTCALL = 0x0080

# The `at::Tensor` of a Python object; null if the object is no tensor, or tensors are not looked
# into.  `%known` is what `_known_tensors` returns.
_TENSOR_OF = """\
declare i32 @aoti_torch_get_data_ptr(ptr, ptr)
declare i32 @PyType_IsSubtype(ptr, ptr)

define internal ptr @adjoint.tensor_of(ptr %object, ptr %known) {
entry:
  %offset = load i64, ptr %known
  %usual.at = getelementptr i64, ptr %known, i64 1
  %usual = load ptr, ptr %usual.at
  %root.at = getelementptr i64, ptr %known, i64 2
  %root = load ptr, ptr %root.at
  %type.at = getelementptr i64, ptr %object, i64 1
  %type = load ptr, ptr %type.at
  %is.usual = icmp eq ptr %type, %usual
  br i1 %is.usual, label %found, label %unusual
unusual:
  %never = icmp eq ptr %root, null
  br i1 %never, label %none, label %ask
ask:
  %derives = call i32 @PyType_IsSubtype(ptr %type, ptr %root)
  %is.tensor = icmp ne i32 %derives, 0
  br i1 %is.tensor, label %found, label %none
found:
  %tensor = getelementptr i8, ptr %object, i64 %offset
  ret ptr %tensor
none:
  ret ptr null
}
"""

# The same where nothing is known of tensors.
_NO_TENSORS = """\
define internal i32 @aoti_torch_get_data_ptr(ptr %tensor, ptr %address) {
  ret i32 1
}
define internal ptr @adjoint.tensor_of(ptr %object, ptr %known) {
  ret ptr null
}
"""

# `self` is the address of eight words.  Five are the first arguments of `@{target}`; the third of
# these is the table in which the addresses of a call are stored.  Three are what `_known_tensors`
# returns.  The last argument of a call becomes the last one of `@{target}`.
_TEXT = """\
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare ptr @PyErr_Occurred()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare i32 @PyErr_BadArgument()

define ptr @{name}(ptr %self, ptr %args, i64 %count) {{
entry:
  %address = alloca i64
  %run = call ptr @PyLong_AsVoidPtr(ptr %self)
  %p1 = getelementptr i64, ptr %run, i64 1
  %p2 = getelementptr i64, ptr %run, i64 2
  %p3 = getelementptr i64, ptr %run, i64 3
  %p4 = getelementptr i64, ptr %run, i64 4
  %known = getelementptr i64, ptr %run, i64 5
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
  %tensor = call ptr @adjoint.tensor_of(ptr %object, ptr %known)
  %is.number = icmp eq ptr %tensor, null
  br i1 %is.number, label %number, label %memory
memory:
  %failed = call i32 @aoti_torch_get_data_ptr(ptr %tensor, ptr %address)
  %at = load i64, ptr %address
  %unknown = icmp ne i32 %failed, 0
  br i1 %unknown, label %refuse, label %keep
refuse:
  %refused = call i32 @PyErr_BadArgument()
  br label %fail
number:
  %integer = call i64 @PyLong_AsLongLong(ptr %object)
  %odd = icmp eq i64 %integer, -1
  br i1 %odd, label %check, label %keep
check:
  %error = call ptr @PyErr_Occurred()
  %bad = icmp ne ptr %error, null
  br i1 %bad, label %fail, label %keep
keep:
  %value = phi i64 [ %at, %memory ], [ %integer, %number ], [ %integer, %check ]
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

# `self` is the address of four words: the address of a list, and what `_known_tensors` returns.
# The list says what is expected of each tensor among the arguments, in their order: the alignment
# of its memory less one, the number of its axes, and its strides.
MISFITS = "adjoint.misfits"

# The bits of a result, one for each tensor.  Of more tensors all are reported if one is a misfit.
MAX_REPORTED_TENSORS = 62

MISFITS_TEXT = f"""\
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLongLong(i64)
declare i32 @aoti_torch_get_dim(ptr, ptr)
declare i32 @aoti_torch_get_strides(ptr, ptr)
declare zeroext i1 @_ZN2at6native6is_negERKNS_6TensorE(ptr)

{_TENSOR_OF}
define internal i1 @adjoint.fits(ptr %object, ptr %known, ptr %expected) {{
entry:
  %found = alloca i64
  %tensor = call ptr @adjoint.tensor_of(ptr %object, ptr %known)
  %is.other = icmp eq ptr %tensor, null
  br i1 %is.other, label %no, label %axes
axes:
  %axes.at = getelementptr i64, ptr %expected, i64 1
  %axes.expected = load i64, ptr %axes.at
  %strides = getelementptr i64, ptr %expected, i64 2
  %no.axes = call i32 @aoti_torch_get_dim(ptr %tensor, ptr %found)
  %axes.found = load i64, ptr %found
  %axes.agree = icmp eq i64 %axes.found, %axes.expected
  br i1 %axes.agree, label %layout, label %no
layout:
  %no.strides = call i32 @aoti_torch_get_strides(ptr %tensor, ptr %found)
  %strides.found = load ptr, ptr %found
  %unknown = icmp ne i32 %no.strides, 0
  br i1 %unknown, label %no, label %axis
axis:
  %n = phi i64 [ 0, %layout ], [ %n.next, %compare ]
  %more = icmp slt i64 %n, %axes.expected
  br i1 %more, label %compare, label %memory
compare:
  %one.at = getelementptr i64, ptr %strides, i64 %n
  %one = load i64, ptr %one.at
  %other.at = getelementptr i64, ptr %strides.found, i64 %n
  %other = load i64, ptr %other.at
  %n.next = add i64 %n, 1
  %same = icmp eq i64 %one, %other
  br i1 %same, label %axis, label %no
memory:
  %no.memory = call i32 @aoti_torch_get_data_ptr(ptr %tensor, ptr %found)
  %address = load i64, ptr %found
  %nowhere = icmp eq i64 %address, 0
  %mask = load i64, ptr %expected
  %odd = and i64 %address, %mask
  %unaligned = icmp ne i64 %odd, 0
  %unreadable = or i1 %nowhere, %unaligned
  br i1 %unreadable, label %no, label %sign
sign:
  %negated = call zeroext i1 @_ZN2at6native6is_negERKNS_6TensorE(ptr %tensor)
  br i1 %negated, label %no, label %yes
yes:
  ret i1 true
no:
  ret i1 false
}}

define ptr @adjoint.misfits(ptr %self, ptr %args, i64 %count) {{
entry:
  %words = call ptr @PyLong_AsVoidPtr(ptr %self)
  %known = getelementptr i64, ptr %words, i64 1
  %first = load ptr, ptr %words
  br label %test
test:
  %i = phi i64 [ 0, %entry ], [ %i.next, %take ]
  %expected = phi ptr [ %first, %entry ], [ %next, %take ]
  %misfits = phi i64 [ 0, %entry ], [ %misfits.next, %take ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %take, label %end
take:
  %from = getelementptr ptr, ptr %args, i64 %i
  %object = load ptr, ptr %from
  %fits = call i1 @adjoint.fits(ptr %object, ptr %known, ptr %expected)
  %bit = shl i64 1, %i
  %is.counted = icmp slt i64 %i, {MAX_REPORTED_TENSORS}
  %reported = select i1 %is.counted, i64 %bit, i64 -1
  %misfit = select i1 %fits, i64 0, i64 %reported
  %misfits.next = or i64 %misfits, %misfit
  %axes.at = getelementptr i64, ptr %expected, i64 1
  %axes = load i64, ptr %axes.at
  %strides = getelementptr i64, ptr %expected, i64 2
  %next = getelementptr i64, ptr %strides, i64 %axes
  %i.next = add i64 %i, 1
  br label %test
end:
  %result = call ptr @PyLong_FromLongLong(i64 %misfits)
  ret ptr %result
}}
"""


class _MethodDef(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


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
    looks = _TENSOR_OF if takes_tensors() else _NO_TENSORS
    return text + looks + _TEXT.format(name=name, target=target), name


def words_of(*words: int) -> npt.NDArray[np.int64]:
    """The words that a callable reads: `words`, then what native code has to know of tensors."""
    return np.array([*words, *_known_tensors()], dtype=np.int64)


def _known_tensors() -> Sequence[int]:
    known = tensor_objects()
    return (0, 0, 0) if known is None else (known.offset, known.usual, known.root)


@functools.cache
def takes_tensors() -> bool:
    """Whether callables find the memory of tensors; otherwise they take addresses only."""
    has_functions = all(external(name) is not None for name in TENSOR_FUNCTIONS)
    return has_functions and tensor_objects() is not None


def runner(text: str, target: str) -> Callable[[int], Callable[..., int]]:
    """For a native function `target` that `text` defines, a maker of Python callables of it.

    The maker is given the address of words (`words_of`): what to store where and how often, the
    table of a call's addresses, the list of steps and their number.  A callable takes addresses, or
    the tensors that are there, and one more integer that is passed on; it returns what `target`
    does.
    """
    return builtin_maker(resident(*called(text, target)), b"run", b"Run kernels.")


@functools.cache
def misfit_finder() -> Callable[[int], Callable[..., int]]:
    """Makes callables that tell which tensors kernels cannot read as they are.

    These have other strides than expected, no memory or unaligned memory, or are lazily negated.

    The maker is given the address of words (`words_of`), the first of which is the address of what
    is expected (`MISFITS_TEXT`).  A callable returns bits, the lowest for the first tensor.
    """
    doc = b"Which tensors cannot be read as they are."
    return builtin_maker(resident(MISFITS_TEXT, MISFITS), b"misfits", doc)


def builtin_maker(code: int, name: bytes, doc: bytes) -> Callable[[int], Callable[..., int]]:
    """Makes built-in functions of native code, each given the address of its words."""
    definition = _MethodDef(name, code, _METH_FASTCALL, doc)
    # Built-in functions refer to their definition until the interpreter is gone.  A list of this
    # module would free it earlier: at exit, modules are cleared before the last garbage collection.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
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
