"""Which language a file is in, by its name."""

from __future__ import annotations

from pathlib import PurePosixPath

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


def language_of(path: str) -> str:
    """The language of a file of this name; `text` if its name does not say."""
    return SUFFIXES.get(PurePosixPath(path).suffix.lower(), "text")


def is_test(path: str) -> bool:
    """Whether a file holds tests, by the conventions of test runners."""
    file = PurePosixPath(path)
    stem = file.name.partition(".")[0]
    return (
        any(part in {"test", "tests", "__tests__", "testing"} for part in file.parts[:-1])
        or stem.startswith("test_")
        or stem.endswith(("_test", "_tests"))
        or ".test." in file.name
        or ".spec." in file.name
    )
