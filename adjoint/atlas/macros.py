"""Macros of the C family at places where the grammar allows no name, such as export marks.

`class API Name {` and `API int f();` are C++ only after preprocessing, and a parser takes them for
something else.  Words in capitals in front of a declaration are replaced by as many spaces, so that
no position changes.
"""

from __future__ import annotations

import re

_MACRO = rb"[A-Z][A-Z0-9]*_[A-Z0-9_]*|[A-Z][A-Z0-9]{3,}"
_NAME = rb"[A-Za-z_][\w:]*(?:<[^;{}()]*>)?"
_SPECIFIER = (
    rb"(?:const|static|inline|constexpr|virtual|explicit|unsigned|signed|struct|class|friend|extern"
    rb"|template|void|int|char|bool|double|float|long|short|auto|size_t|for|while|do|using|typedef"
    rb"|public|private|protected)\b"
)

_STRAY = re.compile(
    # Comments, strings and directives, with the lines that continue them, are left as they are.
    rb"(?P<kept>//[^\n]*|/\*[\s\S]*?\*/|\"(?:\\.|[^\"\\\n])*\"|^[ \t]*\#(?:\\\n|[^\n])*)"
    # class API Name {
    rb"|\b(?:class|struct|union|enum(?:[ \t]+class)?)\s+(?P<mark>(?:"
    + _MACRO
    + rb")(?:\([^()\n]*\))?)(?=\s+[A-Za-z_][\w:<>, ]*?\s*(?:final\b\s*)?[:{;])"
    # class API(Name) {
    + rb"|\b(?:class|struct)\s+(?P<class_wrap>(?:"
    + _MACRO
    + rb")\()[\w \t:,<>]+(?P<class_close>\))(?=\s*[:{;])"
    # API(int) f();
    + rb"|^[ \t]*(?P<wrap>(?:"
    + _MACRO
    + rb")\()[\w \t:*&<>]+(?P<close>\))(?=\s+(?!(?:"
    + _MACRO
    + rb")\b)[A-Za-z_]\w*\s*\()"
    # API int f();  API Type *name;
    + rb"|(?<![\w.>:\"])(?P<prefix>(?:"
    + _MACRO
    + rb")(?:\(\"[^\"\n]*\"\))?)(?=\s+(?:"
    + _SPECIFIER
    + rb"|"
    + _NAME
    + rb"\s*[*&]+\s*[A-Za-z_]|"
    + _NAME
    + rb"\s+[*&]*[A-Za-z_~]))"
    # void API f();
    + rb"|(?<=[\w>*&])[ \t]+(?P<infix>"
    + _MACRO
    + rb")(?=\s+[A-Za-z_][\w:]*\s*\()"
    # int f() const API;
    + rb"|\)(?:\s*(?:const|override|final)\b)*\s*(?P<postfix>(?:"
    + _MACRO
    + rb")(?:\([^()\n]*\))?)(?=\s*(?:[{;:=]|const\b|override\b|final\b))"
    # API Name(...) and API ~Name(), where Name is a class
    + rb"|(?<![\w.>:\"])(?P<maker>"
    + _MACRO
    + rb")(?=\s+~?(?P<class>[A-Za-z_]\w*)\s*\()"
    # Type API name;  Type *API name;
    + rb"|(?:[>*]|\b(?!(?:const|"
    + _SPECIFIER
    + rb")\b)[A-Za-z_]\w*\s)\s*(?P<reference>"
    + _MACRO
    + rb")(?=\s+[A-Za-z_]\w*\s*(?:\[\w*\]\s*)?[;=,)])"
    # int f(Type a = {}, Type b = {0, 1});
    + rb"|=\s*(?P<braces>\{[^(){};=]*\})(?=\s*[,)])"
    # typename Type::name is a type with the word or without, and an expression only without.
    + rb"|\b(?P<dependent>typename)(?=\s+(?:::\s*)?\w+\s*(?:::|<))"
    # A call alone on its lines, without a semicolon.
    + rb"|^[ \t]*(?P<call>(?:"
    + _MACRO
    + rb")\((?:[^(){};]|\((?:[^(){};]|\([^(){};]*\))*\))*\))[ \t]*$"
    rb"(?!\s*(?:[{;,:)=?.<>/%^|]|&&))",
    re.MULTILINE,
)


_CLASS = re.compile(rb"\b(?:class|struct|union)\s+(?:(?:" + _MACRO + rb")\s+)*([A-Za-z_]\w*)")


def without_macros(content: bytes) -> bytes:
    """The source with stray macros blanked; as many bytes, on as many lines."""
    classes = frozenset(_CLASS.findall(content))

    def blanked(found: re.Match[bytes]) -> bytes:
        is_maker = found.group("maker") is not None
        return found.group() if is_maker and found["class"] not in classes else _blanked(found)

    return _STRAY.sub(blanked, content)


_CONDITION = re.compile(
    rb"^[ \t]*\#[ \t]*(?:if|ifdef|ifndef|elif|else|endif)\b[^\n]*", re.MULTILINE
)


def without_conditions(content: bytes) -> bytes:
    """The source with all of its branches, and none of the directives that choose among them."""
    return _CONDITION.sub(lambda found: b" " * len(found.group()), content)


def without_alternatives(content: bytes) -> bytes:
    """The source with the first branch of every choice, and none of the directives that choose.

    Branches that each open the same class, as `#if A` `class X {` `#else` `class API X {` `#endif`,
    are no syntax together.
    """
    lines = content.split(b"\n")
    dropped: list[bool] = []
    """For each condition around the line, whether this branch of it is left out."""
    for number, line in enumerate(lines):
        directive = _CONDITION.match(line)
        word = line.lstrip(b" \t#")
        if directive is not None:
            if word.startswith(b"if"):
                dropped.append(False)
            elif dropped and word.startswith(b"el"):
                dropped[-1] = True
            elif dropped:
                dropped.pop()
        if directive is not None or any(dropped):
            lines[number] = b" " * len(line)
    return b"\n".join(lines)


def _blanked(found: re.Match[bytes]) -> bytes:
    whole = found.group()
    for group in found.re.groupindex.keys() - {"kept", "class"}:
        word = found.group(group)
        if word is not None:
            at = found.start(group) - found.start()
            blank = re.sub(rb"[^\n]", b" ", word)
            blank = b"0" + blank[1:] if group == "braces" else blank
            whole = whole[:at] + blank + whole[at + len(word) :]
    return whole
