"""Patterns of a Python file, and what in it matters to speed and safety: each with its line.

Calls are known by the full name of what is called, through the imports of the file, so that a
method `eval` of an object is not the function `eval`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from adjoint.atlas.facts import Import, Note
from adjoint.atlas.python_values import Function, dotted, last, parameters, written

# Full name of a decorator: section, and what it shows.
DECORATORS = {
    "dataclasses.dataclass": ("patterns", "dataclass `{name}`"),
    "contextlib.contextmanager": ("patterns", "context manager `{name}`"),
    "contextlib.asynccontextmanager": ("patterns", "context manager `{name}`"),
    "functools.singledispatch": (
        "patterns",
        "dispatch on the type of the first argument, `{name}`",
    ),
    "functools.wraps": ("patterns", "decorator: `{name}` stands in for the function it wraps"),
    "functools.total_ordering": ("patterns", "ordering derived from one comparison, `{name}`"),
    "abc.abstractmethod": ("patterns", "abstract method `{name}`"),
    "functools.cache": ("performance", "cache without a bound: `{name}`"),
    "functools.lru_cache": ("performance", "cache of recent results: `{name}`"),
    "functools.cached_property": ("performance", "value computed once for each object: `{name}`"),
}

# Full name of a base class: what a class derived from it is.
BASES = {
    "abc.ABC": "abstract class `{name}`",
    "ast.NodeTransformer": "visitor `{name}`",
    "ast.NodeVisitor": "visitor `{name}`",
    "enum.Enum": "enumeration `{name}`",
    "enum.Flag": "enumeration `{name}`",
    "enum.IntEnum": "enumeration `{name}`",
    "enum.IntFlag": "enumeration `{name}`",
    "enum.StrEnum": "enumeration `{name}`",
    "typing.NamedTuple": "named tuple `{name}`",
    "typing.Protocol": "protocol `{name}`",
    "typing.TypedDict": "typed dictionary `{name}`",
}

# Full name of what is called, or a prefix of it that ends in a dot: section, and what it shows.
CALLS = {
    "concurrent.futures.": ("performance", "pool of workers: `{call}`"),
    "multiprocessing.": ("performance", "processes: `{call}`"),
    "threading.Condition": ("performance", "lock: `{call}`"),
    "threading.Lock": ("performance", "lock: `{call}`"),
    "threading.RLock": ("performance", "lock: `{call}`"),
    "threading.Semaphore": ("performance", "lock: `{call}`"),
    "threading.Thread": ("performance", "thread: `{call}`"),
    "torch.cuda.synchronize": ("performance", "waits for the device: `{call}`"),
    "ctypes.": ("safety", "raw memory: `{call}`"),
    "eval": ("safety", "evaluates text as code: `{call}`"),
    "exec": ("safety", "executes text as code: `{call}`"),
    "marshal.load": ("safety", "reads code objects: `{call}`"),
    "marshal.loads": ("safety", "reads code objects: `{call}`"),
    "os.popen": ("safety", "starts a shell: `{call}`"),
    "os.system": ("safety", "starts a shell: `{call}`"),
    "cloudpickle.": ("safety", "pickle: `{call}`"),
    "dill.": ("safety", "pickle: `{call}`"),
    "pickle.": ("safety", "pickle: `{call}`"),
    "shelve.open": ("safety", "pickle: `{call}`"),
    "subprocess.": ("safety", "starts a process: `{call}`"),
    "tempfile.mktemp": (
        "safety",
        "name of a temporary file that others may create first: `{call}`",
    ),
    "torch.load": ("safety", "pickle, unless `weights_only`: `{call}`"),
    "typing.cast": ("safety", "unchecked cast: `{call}`"),
    "yaml.load": ("safety", "may build any object: `{call}`"),
    "yaml.unsafe_load": ("safety", "may build any object: `{call}`"),
}
_PLAIN_DECORATORS = frozenset(
    {
        "property",
        "staticmethod",
        "classmethod",
        "setter",
        "deleter",
        "getter",
        "overload",
        "override",
    }
)
"""Decorators that are part of the language rather than of a design."""

_BUILT_IN = frozenset({"eval", "exec"})
_MIN_VISITS = 2
_MIN_CASES = 3


NOTEWORTHY = (
    ast.ClassDef,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.Call,
    ast.For,
    ast.AsyncFor,
    ast.Match,
    ast.ExceptHandler,
    ast.Assign,
)
"""The nodes that notes are read off."""


def notes_of(
    nodes: Iterable[ast.AST], imports: Iterable[Import], names: frozenset[str]
) -> list[Note]:
    """Every note of a module, of whose nodes those that are noteworthy are given.

    `names` are those that its scope binds.
    """
    meanings = _Meanings(imports, names)
    found: set[Note] = set()
    functions: list[Function] = []
    stores: list[ast.Assign] = []
    for node in nodes:
        match node:
            case ast.ClassDef():
                found.update(_of_class(node, meanings))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.update(_of_decorators(node, meanings))
                functions.append(node)
            case ast.Call():
                found.update(_of_call(node, meanings))
            case ast.For() | ast.AsyncFor():
                found.update(_of_loop(node))
            case ast.Match():
                found.update(_of_match(node))
            case ast.ExceptHandler():
                found.update(_of_handler(node))
            case ast.Assign(targets=[ast.Subscript(value=ast.Name(id=table)), *_]) if (
                table in names
            ):
                stores.append(node)
    found.update(_of_registries(functions, stores))
    return sorted(found, key=lambda note: (note.section, note.line, note.what))


class _Meanings:
    """Full names, through the imports of a module."""

    def __init__(self, imports: Iterable[Import], names: frozenset[str]) -> None:
        self.names = names
        self.full = {
            each.bound: f"{each.module}.{each.name}" if each.name else each.module
            for each in imports
            if each.bound
        }

    def of(self, node: ast.expr) -> str:
        """The full name of what an expression names; of a call, of what is called."""
        chain = dotted(node.func if isinstance(node, ast.Call) else node)
        first, dot, rest = chain.partition(".")
        return f"{self.full.get(first, first)}{dot}{rest}"

    def is_built_in(self, name: str) -> bool:
        return name in _BUILT_IN and name not in self.names

    def is_imported(self, node: ast.expr) -> bool:
        return dotted(node).partition(".")[0] in {name.partition(".")[0] for name in self.full}


def _of_class(node: ast.ClassDef, meanings: _Meanings) -> Iterator[Note]:
    yield from _of_decorators(node, meanings)
    for base in node.bases:
        full = meanings.of(base.value if isinstance(base, ast.Subscript) else base)
        what = BASES.get(full.replace("typing_extensions.", "typing."))
        if what is not None:
            yield Note("patterns", what.format(name=node.name), node.lineno)
    methods = {each.name: each for each in node.body if isinstance(each, Function)}
    if {"__enter__", "__exit__"} <= methods.keys():
        line = methods["__enter__"].lineno
        yield Note("patterns", f"context manager `{node.name}`", line)
    visits = [name for name in methods if name.startswith("visit_")]
    if len(visits) >= _MIN_VISITS:
        what = f"visitor `{node.name}`: {len(visits)} methods `visit_…`"
        yield Note("patterns", what, methods[visits[0]].lineno)
    if {"__get__"} & methods.keys():
        yield Note("patterns", f"descriptor `{node.name}`", methods["__get__"].lineno)


def _of_decorators(node: Function | ast.ClassDef, meanings: _Meanings) -> Iterator[Note]:
    for decorator in node.decorator_list:
        full = meanings.of(decorator)
        if full in DECORATORS:
            section, what = DECORATORS[full]
            yield Note(section, what.format(name=node.name), node.lineno)
        elif full and last(full) not in _PLAIN_DECORATORS:
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            yield Note("patterns", f"decorated by `{written(called)}`", node.lineno)


def _of_registries(functions: Iterable[Function], stores: Iterable[ast.Assign]) -> Iterator[Note]:
    """Tables of the module into which a function puts a function that it is given and returns."""
    for store in stores:
        around = [f for f in functions if f.lineno <= store.lineno <= (f.end_lineno or 0)]
        given = {each.arg for function in around for each in parameters(function.args)}
        table = store.targets[0]
        assert isinstance(table, ast.Subscript)
        value = dotted(store.value)
        if value not in given or dotted(table.value) in given:
            continue
        inner = max(around, key=lambda function: function.lineno)
        returned = (n.value for n in ast.walk(inner) if isinstance(n, ast.Return) and n.value)
        if any(dotted(each) == value for each in returned):
            outer = min(around, key=lambda function: function.lineno)
            what = f"registry `{dotted(table.value)}`, filled by `{outer.name}`"
            yield Note("patterns", what, store.lineno)


def _of_call(node: ast.Call, meanings: _Meanings) -> Iterator[Note]:
    full = meanings.of(node)
    if not full:
        return
    prefix = f"{full.partition('.')[0]}."
    futures = "concurrent.futures."
    prefix = futures if full.startswith(futures) else prefix
    found = CALLS.get(full) or (CALLS.get(prefix) if "." in full else None)
    if found is None or (full in _BUILT_IN and not meanings.is_built_in(full)):
        return
    if "." in full and not meanings.is_imported(node.func):
        return
    section, what = found
    shell = any(k.arg == "shell" and _is_true(k.value) for k in node.keywords)
    name = written(node.func) + ("(shell=True)" if shell else "")
    yield Note(section, what.format(call=name), node.lineno)


def _is_true(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is True


def _of_loop(node: ast.For | ast.AsyncFor) -> Iterator[Note]:
    """A Python loop over the length of an axis of a tensor."""
    call = node.iter
    if not isinstance(call, ast.Call) or dotted(call.func) != "range" or not call.args:
        return
    bound = call.args[-1] if len(call.args) < 3 else call.args[1]
    is_shape = isinstance(bound, ast.Subscript) and last(dotted(bound.value)) == "shape"
    is_size = isinstance(bound, ast.Call) and last(dotted(bound.func)) == "size"
    if is_shape or is_size:
        what = f"Python loop over an axis of a tensor: `range({written(bound)})`"
        yield Note("performance", what, node.lineno)


def _of_match(node: ast.Match) -> Iterator[Note]:
    classes = [case for case in node.cases if _is_class_pattern(case.pattern)]
    if len(classes) >= _MIN_CASES:
        what = f"case distinction by class: `match {written(node.subject)}`, {len(classes)} cases"
        yield Note("patterns", what, node.lineno)


def _is_class_pattern(pattern: ast.pattern) -> bool:
    if isinstance(pattern, ast.MatchOr):
        return all(map(_is_class_pattern, pattern.patterns))
    inner = pattern.pattern if isinstance(pattern, ast.MatchAs) else pattern
    return isinstance(inner, ast.MatchClass)


def _of_handler(node: ast.ExceptHandler) -> Iterator[Note]:
    """A handler of every exception that drops what it catches."""
    catches_all = node.type is None or dotted(node.type) in {"Exception", "BaseException"}
    drops = all(isinstance(each, ast.Pass | ast.Continue) for each in node.body)
    if catches_all and drops:
        yield Note("safety", "drops every exception", node.lineno)
