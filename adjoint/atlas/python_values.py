"""What single expressions and statements of Python say: names, kinds, signatures, messages."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from adjoint.atlas.shortening import MAX_MESSAGE_CHARACTERS, MAX_SIGNATURE_CHARACTERS, shortened

Function = ast.FunctionDef | ast.AsyncFunctionDef

_ENUMS = frozenset({"Enum", "IntEnum", "StrEnum", "Flag", "IntFlag"})
_TYPE_MAKERS = frozenset({"TypeVar", "NewType", "ParamSpec", "TypeVarTuple", "TypeAliasType"})
_OPTION_MAKERS = frozenset({"add_argument", "add_option", "option", "Option"})
_ENVIRONMENT_READERS = frozenset({"os.environ.get", "os.getenv", "environ.get", "getenv"})


def dotted(node: ast.expr) -> str:
    """`a.b.c` of a chain of attributes that starts at a name; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([node.id, *reversed(parts)])


def last(name: str) -> str:
    """The last part of a dotted name."""
    return name.rpartition(".")[2]


def written(node: ast.AST) -> str:
    """The expression as Python, on one line."""
    return shortened(ast.unparse(node), MAX_SIGNATURE_CHARACTERS)


def signature(node: Function | ast.ClassDef) -> str:
    """The first line of a class or function, with all of its parameters."""
    if isinstance(node, ast.ClassDef):
        bases = [*map(written, node.bases), *(written(each) for each in node.keywords)]
        return f"class {node.name}({', '.join(bases)})" if bases else f"class {node.name}"
    word = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {written(node.returns)}" if node.returns is not None else ""
    return f"{word} {node.name}({written(node.args)}){returns}"


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """All parameters, those that take the rest last."""
    every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return every + [each for each in (arguments.vararg, arguments.kwarg) if each is not None]


def is_enum(node: ast.ClassDef) -> bool:
    return any(last(dotted(base)) in _ENUMS for base in node.bases)


def bound_names(target: ast.AST) -> Iterator[ast.Name]:
    """The names that an assignment to `target` binds."""
    if isinstance(target, ast.Name):
        yield target
    elif isinstance(target, ast.Tuple | ast.List):
        for each in target.elts:
            yield from bound_names(each)
    elif isinstance(target, ast.Starred):
        yield from bound_names(target.value)


def assigned_kind(name: str, node: ast.AST, in_class: bool, in_enum: bool) -> str:
    """Whether an assignment defines a type, a constant, a field or a variable."""
    annotation = last(dotted(node.annotation)) if isinstance(node, ast.AnnAssign) else ""
    if isinstance(node, ast.AnnAssign) and isinstance(node.annotation, ast.Subscript):
        annotation = last(dotted(node.annotation.value))
    value = node.value if isinstance(node, ast.AnnAssign | ast.Assign) else None
    makes = last(dotted(value.func)) if isinstance(value, ast.Call) else ""
    is_type = type(node).__name__ == "TypeAlias" or annotation == "TypeAlias"
    if is_type or makes in _TYPE_MAKERS:
        return "type"
    is_shouted = name.upper() == name and any(letter.isalpha() for letter in name)
    if annotation == "Final" or is_shouted or (in_enum and not name.startswith("_")):
        return "constant"
    return "field" if in_class else "variable"


def option_names(node: ast.Call) -> list[str]:
    """The command-line options that a call declares."""
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _OPTION_MAKERS:
        return []
    strings = [each.value for each in node.args if isinstance(each, ast.Constant)]
    return [each for each in strings if isinstance(each, str) and each.startswith("--")]


def environment_variable(node: ast.Call | ast.Subscript) -> str:
    """The variable of the environment that an expression reads; empty if it reads none."""
    if isinstance(node, ast.Call):
        key = node.args[0] if node.args and dotted(node.func) in _ENVIRONMENT_READERS else None
    else:
        key = node.slice if dotted(node.value) in {"os.environ", "environ"} else None
    is_text = isinstance(key, ast.Constant) and isinstance(key.value, str)
    return str(key.value) if isinstance(key, ast.Constant) and is_text else ""


def message_of(node: ast.Raise | ast.Assert) -> str:
    """The text that a failure shows, with its formatted parts in braces; empty if it has none."""
    if isinstance(node, ast.Assert):
        return "" if node.msg is None else _text(node.msg)
    if not isinstance(node.exc, ast.Call):
        return ""
    texts = (_text(each) for each in node.exc.args)
    return next((text for text in texts if text), "")


def _text(node: ast.expr) -> str:
    match node:
        case ast.Constant(value=str(value)):
            text = value
        case ast.JoinedStr(values=values):
            parts = (
                part.value
                if isinstance(part, ast.Constant)
                else "{" + ast.unparse(getattr(part, "value", part)) + "}"
                for part in values
            )
            text = "".join(str(part) for part in parts)
        case ast.BinOp(left=left, op=ast.Add() | ast.Mod()):
            text = _text(left)
        case ast.Call(func=ast.Attribute(value=value, attr="format")):
            text = _text(value)
        case _:
            return ""
    return shortened(text, MAX_MESSAGE_CHARACTERS)
