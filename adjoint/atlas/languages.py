"""Which language a file is in, by its name."""

from __future__ import annotations

import functools
import posixpath

SUFFIXES = {
    ".py": "Python",
    ".pyi": "Python",
    ".c": "C",
    ".h": "C",
    ".cc": "C++",
    ".cpp": "C++",
    ".cxx": "C++",
    ".hh": "C++",
    ".hpp": "C++",
    ".hxx": "C++",
    ".ipp": "C++",
    ".cu": "CUDA",
    ".cuh": "CUDA",
    ".js": "JavaScript",
    ".mjs": "JavaScript",
    ".cjs": "JavaScript",
    ".jsx": "JavaScript",
    ".ts": "TypeScript",
    ".mts": "TypeScript",
    ".cts": "TypeScript",
    ".tsx": "TSX",
    ".rs": "Rust",
    ".go": "Go",
    ".yaml": "YAML",
    ".yml": "YAML",
    ".toml": "TOML",
    ".md": "Markdown",
    ".markdown": "Markdown",
    ".rst": "reStructuredText",
    ".txt": "text",
}

# Languages in which a name found in an included file is meant, whatever file that is.
C_FAMILY = frozenset({"C", "C++", "CUDA"})


_TEST_FOLDERS = frozenset({"test", "tests", "__tests__", "testing"})


@functools.cache
def language_of(path: str) -> str:
    """The language of a file of this name; `text` if its name does not say."""
    return SUFFIXES.get(posixpath.splitext(path)[1].lower(), "text")


@functools.cache
def is_test(path: str) -> bool:
    """Whether a file holds tests, by the conventions of test runners."""
    *folders, name = path.split("/")
    stem = name.partition(".")[0]
    return (
        not _TEST_FOLDERS.isdisjoint(folders)
        or stem.startswith("test_")
        or stem.endswith(("_test", "_tests"))
        or ".test." in name
        or ".spec." in name
    )
