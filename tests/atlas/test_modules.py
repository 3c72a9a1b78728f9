from __future__ import annotations

from pathlib import Path

import pytest

from adjoint.atlas.modules import Modules, is_standard, package_of
from tests.atlas_trees import planted

FILES = [
    "pkg/__init__.py", "pkg/a.py", "pkg/sub/__init__.py", "pkg/sub/b.py", "pkg/c.pyi",
    "src/own/__init__.py", "src/own/d.py", "scripts/e.py", "scripts/f.py",
    "include/x/y.h", "lib/y.h", "lib/z.c",
    "web/m.ts", "web/n/index.js", "rs/src/lib.rs", "rs/src/k.rs", "rs/src/k/deep.rs",
    "go/util/one.go", "go/util/two.go",
]  # fmt: skip


@pytest.mark.parametrize(
    ("path", "module", "expected"),
    [
        ("pkg/a.py", "pkg.sub.b", ["pkg/sub/b.py"]),
        ("pkg/a.py", ".sub", ["pkg/sub/__init__.py"]),
        ("pkg/sub/b.py", "..a", ["pkg/a.py"]),
        ("pkg/sub/b.py", "..", ["pkg/__init__.py"]),
        ("pkg/a.py", "pkg.c", ["pkg/c.pyi"]),
        ("pkg/a.py", "own.d", ["src/own/d.py"]),
        ("scripts/e.py", "f", ["scripts/f.py"]),
        ("pkg/a.py", "f", []),
        ("pkg/a.py", "numpy.linalg", []),
        ("lib/z.c", '"y.h"', ["lib/y.h"]),
        ("lib/z.c", "<x/y.h>", ["include/x/y.h"]),
        ("lib/z.c", "<stdio.h>", []),
        ("web/m.ts", "./n", ["web/n/index.js"]),
        ("web/n/index.js", "../m.js", ["web/m.ts"]),
        ("web/m.ts", "react", []),
        ("rs/src/lib.rs", "crate::k::deep", ["rs/src/k/deep.rs"]),
        ("rs/src/k.rs", "self::deep", ["rs/src/k/deep.rs"]),
        ("rs/src/k/deep.rs", "super::super::k", ["rs/src/k.rs"]),
        ("rs/src/lib.rs", "std::fmt", []),
        ("go/main.go", "example.com/go/util", ["go/util/one.go", "go/util/two.go"]),
    ],
)
def test_imports_mean_files(path: str, module: str, expected: list[str]) -> None:
    modules = Modules(Path("/nowhere"), FILES)
    assert list(modules.resolve(path, module)) == expected


def test_a_tree_inside_a_package_knows_its_name(tmp_path: Path) -> None:
    planted(tmp_path, {"top/__init__.py": "", "top/in/__init__.py": "", "top/in/a.py": ""})
    modules = Modules(tmp_path / "top" / "in", ["__init__.py", "a.py"])
    assert modules.resolve("a.py", "top.in.a") == ("a.py",)
    assert modules.module_of["a.py"] == "top.in.a"


def test_packages_outside_of_the_tree() -> None:
    assert package_of("a.py", "numpy.linalg") == "numpy"
    assert package_of("a.js", "@scope/name/part") == "@scope/name"
    assert package_of("a.rs", "std::fmt") == "std"
    assert is_standard("a.py", "os")
    assert not is_standard("a.py", "numpy")
