"""Macros of the C family that stand where the grammar has no word, such as export marks.

`class API Name {` and `API int f();` are C++ only after preprocessing, and a parser takes them for
something else.  Words in capitals that stand in front of a declaration are blanked, one space for
each byte, so that every position stays what it is.
"""

from __future__ import annotations

import re

_MACRO = rb"[A-Z][A-Z0-9]*_[A-Z0-9_]*|[A-Z][A-Z0-9]{3,}"
_NAME = rb"[A-Za-z_][\w:]*(?:<[^;{}()]*>)?"
_SPECIFIER = (
    rb"(?:const|static|inline|constexpr|virtual|explicit|unsigned|signed|struct|class|friend|extern"
    rb"|template|void|int|char|bool|double|float|long|short|auto|size_t)\b"
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
    # A call alone on its line, without a semicolon.
    + rb"|^[ \t]*(?P<call>(?:"
    + _MACRO
    + rb")\((?:[^(){};\n]|\([^(){};\n]*\))*\))[ \t]*$(?!\s*[{;,:)=])",
    re.MULTILINE,
)


def without_macros(content: bytes) -> bytes:
    """The source with stray macros blanked; as many bytes, on as many lines."""
    return _STRAY.sub(_blanked, content)


_CONDITION = re.compile(
    rb"^[ \t]*\#[ \t]*(?:if|ifdef|ifndef|elif|else|endif)\b[^\n]*", re.MULTILINE
)


def without_conditions(content: bytes) -> bytes:
    """The source with all of its branches, and none of the directives that choose among them."""
    return _CONDITION.sub(lambda found: b" " * len(found.group()), content)


def _blanked(found: re.Match[bytes]) -> bytes:
    whole = found.group()
    for group in found.re.groupindex.keys() - {"kept"}:
        word = found.group(group)
        if word is not None:
            at = found.start(group) - found.start()
            whole = whole[:at] + b" " * len(word) + whole[at + len(word) :]
    return whole
