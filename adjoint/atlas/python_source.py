"""The facts of a Python file, by Python's own `ast` and `symtable`."""

from __future__ import annotations

import ast
import builtins
import inspect
import itertools
import symtable
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

from adjoint.atlas.facts import Facts, Import, Message, Symbol, Use
from adjoint.atlas.python_notes import NOTEWORTHY, notes_of
from adjoint.atlas.python_values import (
    Function,
    assigned_kind,
    bound_names,
    dotted,
    environment_variable,
    is_enum,
    message_of,
    option_names,
    parameters,
    signature,
)
from adjoint.atlas.shortening import LONG_CALL_CHARACTERS, MAX_LINE_CHARACTERS, shortened

_BUILTINS = frozenset(dir(builtins))
_BLOCKS = (ast.For, ast.AsyncFor, ast.While, ast.If, ast.With, ast.AsyncWith, ast.Try, ast.Match)


@dataclass(eq=False)
class _Scope:
    """A module, class, function, lambda or comprehension that encloses a node."""

    name: str
    """Qualified; empty for the module."""
    kind: str
    local: frozenset[str]
    imported: frozenset[str]
    parent: _Scope | None
    receiver: str = ""
    """What the innermost method around calls its object."""
    owner: str = ""
    """The class of that method."""
    in_enum: bool = False
    deepest: int = 0

    def qualified(self, name: str) -> str:
        return f"{self.name}.{name}" if self.name else name

    def inner(self, names: Iterable[str]) -> _Scope:
        """The scope of a lambda or comprehension inside this one."""
        scope = _Scope(self.name, "expression", frozenset(names), frozenset(), self)
        scope.receiver, scope.owner = self.receiver, self.owner
        return scope


@dataclass(frozen=True, eq=False)
class _Place:
    """A node that is still to be visited."""

    node: ast.AST
    scope: _Scope
    depth: int = 0
    """How many blocks of its function are around it."""


_Places: TypeAlias = Iterator[_Place]


@dataclass(eq=False)
class _Found:
    """What one walk collects."""

    symbols: list[Symbol] = field(default_factory=list)
    imports: list[Import] = field(default_factory=list)
    uses: list[tuple[Use, str]] = field(default_factory=list)
    """Each with a name: it is a use only if this file defines or imports that name."""
    messages: list[Message] = field(default_factory=list)
    functions: list[tuple[int, _Scope]] = field(default_factory=list)
    """Index of a function's symbol, and the scope that knows how deep its blocks nest."""
    names: set[str] = field(default_factory=set)


def parse(text: str, facts: Facts) -> Facts:
    """`facts`, with what the syntax of `text` says; where it has an error, they say so."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
            tables = symtable.symtable(text, "source", "exec")
        return _Walk(text, tables).facts(tree, facts)
    except SyntaxError as error:
        where = f"line {error.lineno}" if error.lineno else "no line is known"
        problem = f"Python cannot parse it: {error.msg} ({where})."
    except (RecursionError, MemoryError, ValueError) as error:
        problem = f"Python cannot parse it: {str(error) or type(error).__name__}."
    return facts._replace(problems=(*facts.problems, problem))


class _Walk:
    """One walk over a module.  Nodes wait on a stack, so that no nesting is too deep for it."""

    def __init__(self, text: str, module: symtable.SymbolTable) -> None:
        self.lines = text.split("\n")
        self.found = _Found()
        self.attribute_docs: dict[int, str] = {}
        self.noteworthy: list[ast.AST] = []
        self.tables = {(t.get_type(), t.get_name(), t.get_lineno()): t for t in _nested(module)}
        bound = (s.get_name() for s in module.get_symbols() if s.is_assigned() or s.is_imported())
        self.module = _Scope("", "module", frozenset(bound), frozenset(), None)

    def facts(self, tree: ast.Module, facts: Facts) -> Facts:
        self._read_attribute_docs(tree.body)
        places = [_Place(tree, self.module)]
        while places:
            places.extend(reversed(list(self._visit(places.pop()))))
        found = self.found
        for index, scope in found.functions:
            found.symbols[index] = found.symbols[index]._replace(nesting=scope.deepest)
        symbols = tuple(sorted(set(found.symbols), key=lambda s: (s.line, -s.end, s.name)))
        imports = tuple(sorted(set(found.imports), key=lambda i: (i.line, i)))
        return facts._replace(
            purpose=ast.get_docstring(tree) or facts.purpose,
            symbols=symbols,
            imports=imports,
            uses=self._known_uses({symbol.name for symbol in symbols}),
            notes=tuple(notes_of(self.noteworthy, imports, self.module.local)),
            messages=tuple(sorted(set(found.messages), key=lambda m: (m.line, m.text))),
            is_script=any(_is_main(each) for each in tree.body),
        )

    def _known_uses(self, defined: set[str]) -> tuple[Use, ...]:
        """The uses of what is defined or imported here; other names belong to no file."""
        bound = {each.bound.partition(".")[0] for each in self.found.imports}
        opened = any(each.name == "*" for each in self.found.imports)
        known: dict[tuple[int, int], Use] = {}
        for use, name in sorted(self.found.uses, key=lambda u: (*u[0][1:], u[0].name)):
            is_opened = opened and name not in _BUILTINS and name not in self.module.local
            if name in bound or name in defined or (is_opened and "." not in name):
                known[use.line, use.column] = use  # The longest, and a call before a mention.
        return tuple(known.values())

    def _visit(self, place: _Place) -> _Places:
        """Record what a node says; what is inside it, to be visited next."""
        node, scope = place.node, place.scope
        if isinstance(node, NOTEWORTHY):
            self.noteworthy.append(node)
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return self._visit_function(node, place)
            case ast.ClassDef():
                return self._visit_class(node, place)
            case ast.Lambda():
                return _children(place, scope.inner(each.arg for each in parameters(node.args)))
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                targets = (name for g in node.generators for name in bound_names(g.target))
                return _children(place, scope.inner(name.id for name in targets))
            case ast.Import() | ast.ImportFrom():
                self._visit_import(node)
            case ast.Attribute() | ast.Name():
                if isinstance(node, ast.Attribute) or isinstance(node.ctx, ast.Load):
                    self._visit_chain(node, scope)
                if dotted(node):
                    return iter(())
            case ast.Call():
                self._visit_call(node, scope)
            case ast.Subscript():
                self._option(environment_variable(node), node)
            case ast.Assign() | ast.AnnAssign():
                self._visit_assignment(node, scope)
            case ast.Raise() | ast.Assert():
                text = message_of(node)
                if text:
                    self.found.messages.append(Message(text, node.lineno))
            case _ if type(node).__name__ == "TypeAlias":
                self._visit_assignment(node, scope)
        if isinstance(node, _BLOCKS):
            return self._visit_block(node, place)
        return _children(place, scope)

    def _visit_function(self, node: Function, place: _Place) -> _Places:
        outer = place.scope
        kind = "method" if outer.kind == "class" else "function"
        scope = self._scope(node, "function", outer)
        if kind == "method":
            first = next((each.arg for each in parameters(node.args)), "")
            is_static = any(dotted(each) == "staticmethod" for each in node.decorator_list)
            scope.receiver, scope.owner = ("", "") if is_static else (first, outer.name)
        self.found.functions.append((len(self.found.symbols), scope))
        self._define(node, kind, outer)
        for each in [*node.decorator_list, *_signature_parts(node)]:
            yield _Place(each, outer)
        for statement in node.body:
            yield _Place(statement, scope)

    def _visit_class(self, node: ast.ClassDef, place: _Place) -> _Places:
        outer = place.scope
        self._define(node, "class", outer)
        scope = self._scope(node, "class", outer)
        scope.in_enum = is_enum(node)
        for each in [*node.decorator_list, *node.bases, *(k.value for k in node.keywords)]:
            yield _Place(each, outer)
        self._read_attribute_docs(node.body)
        for statement in node.body:
            yield _Place(statement, scope)

    def _scope(self, node: Function | ast.ClassDef, kind: str, outer: _Scope) -> _Scope:
        table = self.tables.get((kind, node.name, node.lineno))
        names: frozenset[str] = frozenset()
        imported: frozenset[str] = frozenset()
        if table is not None:
            symbols = table.get_symbols()
            names = frozenset(s.get_name() for s in symbols if s.is_local())
            imported = frozenset(s.get_name() for s in symbols if s.is_imported())
        scope = _Scope(outer.qualified(node.name), kind, names, imported, outer)
        scope.receiver, scope.owner = outer.receiver, outer.owner
        return scope

    def _visit_block(self, node: ast.AST, place: _Place) -> _Places:
        """`elif` is the next branch of its `if`, and no block inside of it."""
        depth = place.depth + 1
        place.scope.deepest = max(place.scope.deepest, depth)
        branch = node.orelse if isinstance(node, ast.If) and len(node.orelse) == 1 else []
        for child in _nodes(node):
            is_branch = bool(branch) and child is branch[0] and isinstance(child, ast.If)
            yield _Place(child, place.scope, place.depth if is_branch else depth)

    def _visit_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                found = Import(alias.name, "", alias.asname or alias.name, node.lineno)
            else:
                module = "." * node.level + (node.module or "")
                bound = "" if alias.name == "*" else alias.asname or alias.name
                found = Import(module, alias.name, bound, node.lineno)
            self.found.imports.append(found)

    def _visit_call(self, node: ast.Call, scope: _Scope) -> None:
        for option in option_names(node):
            self._option(option, node)
        self._option(environment_variable(node), node)
        if dotted(node.func):
            over = (node.end_lineno or node.lineno) - node.lineno
            length = (node.end_col_offset or 0) - node.col_offset
            length = LONG_CALL_CHARACTERS * (over + 1) if over else length
            self._visit_chain(node.func, scope, length)

    def _visit_chain(self, node: ast.expr, scope: _Scope, call: int = 0) -> None:
        """Record a name, or a chain of attributes of one, by what the name means here."""
        chain = dotted(node)
        first, _, rest = chain.partition(".")
        meaning = self._meaning(first, scope) if chain else ""
        if not meaning:
            return
        name = f"{meaning}.{rest}" if rest else meaning
        line = self.lines[node.lineno - 1] if node.lineno <= len(self.lines) else ""
        column = _characters(line, node.col_offset)
        end = node.end_col_offset if node.end_lineno == node.lineno else len(line.encode())
        length = _characters(line, end or 0) - column
        self.found.uses.append((Use(name, node.lineno, column, length, call), meaning))
        is_stored = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_stored and meaning == scope.owner and rest.isidentifier():
            self._field(name, node)

    def _meaning(self, name: str, scope: _Scope) -> str:
        """The qualified name that `name` stands for in a scope; empty for a local variable."""
        inner: _Scope | None = scope
        while inner is not None and inner.kind != "module":
            if name in inner.local and (inner is scope or inner.kind != "class"):
                if name in inner.imported:
                    return name
                if name == scope.receiver:
                    return scope.owner
                return inner.qualified(name) if inner.kind != "expression" else ""
            inner = inner.parent
        return name

    def _visit_assignment(self, node: ast.AST, scope: _Scope) -> None:
        """Names that a module, or a class, assigns; those of a function are its own affair."""
        if scope.kind not in {"module", "class"}:
            return
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if type(node).__name__ == "TypeAlias":
            targets = [getattr(node, "name", None)]
        for target in targets:
            for name in bound_names(target) if target is not None else ():
                kind = assigned_kind(name.id, node, scope.kind == "class", scope.in_enum)
                self._assigned(scope.qualified(name.id), kind, name.lineno, node)

    def _field(self, name: str, node: ast.expr) -> None:
        self._assigned(name, "field", node.lineno, node)

    def _assigned(self, name: str, kind: str, line: int, node: ast.AST) -> None:
        if name in self.found.names:
            return
        self.found.names.add(name)
        end = getattr(node, "end_lineno", None) or line
        text = shortened(self.lines[line - 1], MAX_LINE_CHARACTERS)
        doc = self.attribute_docs.get(line) or self._comment(line)
        self.found.symbols.append(Symbol(name, kind, line, end, text, doc, 0))

    def _comment(self, line: int) -> str:
        """The comment right above a line."""
        found: list[str] = []
        above = line - 2
        while above >= 0 and (text := self.lines[above].strip()).startswith("#"):
            found.append(text.lstrip("#:! "))
            above -= 1
        return "\n".join(reversed(found))

    def _read_attribute_docs(self, body: list[ast.stmt]) -> None:
        """A string right after an assignment documents what is assigned."""
        for before, after in itertools.pairwise(body):
            if isinstance(before, ast.Assign | ast.AnnAssign):
                match after:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        self.attribute_docs[before.lineno] = inspect.cleandoc(text)
                    case _:
                        pass

    def _define(self, node: Function | ast.ClassDef, kind: str, outer: _Scope) -> None:
        name = outer.qualified(node.name)
        self.found.names.add(name)
        doc = ast.get_docstring(node) or ""
        end = node.end_lineno or node.lineno
        symbol = Symbol(name, kind, node.lineno, end, signature(node), doc, 0)
        self.found.symbols.append(symbol)

    def _option(self, name: str, node: ast.expr) -> None:
        if name:
            text = shortened(self.lines[node.lineno - 1], MAX_LINE_CHARACTERS)
            end = node.end_lineno or node.lineno
            self.found.symbols.append(Symbol(name, "option", node.lineno, end, text, "", 0))


def _children(place: _Place, scope: _Scope) -> _Places:
    for child in _nodes(place.node):
        yield _Place(child, scope, place.depth)


def _nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The statements and expressions right inside a node; not its operators and contexts."""
    for name in node._fields:
        value = getattr(node, name, None)
        if isinstance(value, list):
            for each in value:
                if isinstance(each, ast.AST):
                    yield each
        elif isinstance(value, ast.AST) and value._fields:
            yield value


def _signature_parts(node: Function) -> Iterator[ast.expr]:
    """The annotations and defaults of a function, which belong to the scope around it."""
    arguments = node.args
    annotations = [each.annotation for each in parameters(arguments)]
    for part in [*annotations, *arguments.defaults, *arguments.kw_defaults, node.returns]:
        if part is not None:
            yield part


def _nested(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    tables = [table]
    while tables:
        found = tables.pop()
        yield found
        tables.extend(found.get_children())


def _characters(line: str, column: int) -> int:
    """The column in characters of a column in bytes of UTF-8."""
    return column if line.isascii() else len(line.encode()[:column].decode(errors="replace"))


def _is_main(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and "'__main__'" in ast.dump(node.test)
