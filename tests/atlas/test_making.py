"""Whole atlases: complete, linked, the same bytes every time, and only what has changed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from adjoint.atlas.linkcheck import dead_in
from adjoint.atlas.making import make
from tests.atlas_trees import PACKAGE, made, planted

BROKEN = {
    "syntax.py": b"def f(:\n    pass\n",
    "mixed.py": "# é\n".encode() + b"x = '\xff\xfe'\n",
    "nul.py": b"x = 1\0\n",
    "deep.py": b"x = " + b"(" * 5000 + b")" * 5000 + b"\n",
    "empty.py": b"",
    "deep.c": b"int x = " + b"(" * 50_000 + b"1;\n",
    "deep.yaml": b"a: " + b"{a: " * 5000 + b"\n",
    "latin.c": b"/* \xe9 */ int x;\n",
    "broken.cpp": b"class A { int f( { } ;; template <\n",
    "broken.yaml": b"a: [1, 2\nb: }\n",
    "broken.toml": b"[a\nb = \n",
    "odd name &<>#.py": b"x = 1\n",
    "\xc3\xa9.py".encode("latin-1").decode(): b"y = 2\n",
}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".atlas" not in path.parts
    }


@pytest.mark.parametrize("format", ["md", "html"])
def test_every_file_and_folder_has_its_pages_and_every_link_leads_somewhere(
    tmp_path: Path, format: str
) -> None:
    planted(tmp_path / "in", PACKAGE)
    found = made(tmp_path / "in", tmp_path / "out", format)
    assert found.dead_links == ()
    assert dead_in(tmp_path / "out") == []
    for path in PACKAGE:
        assert (tmp_path / "out" / f"{path}_docs.{format}").is_file()
        assert (tmp_path / "out" / f"{path}_kw.{format}").is_file()
    for folder in ("", "shop/", "tests/"):
        assert (tmp_path / "out" / f"{folder}index.{format}").is_file()
        assert (tmp_path / "out" / f"{folder}doc.{format}").is_file()
    for page in (f"names.{format}", f"map.{format}", "tags"):
        assert (tmp_path / "out" / page).is_file()


def test_the_same_tree_gives_the_same_bytes(tmp_path: Path) -> None:
    planted(tmp_path / "in", PACKAGE)
    made(tmp_path / "in", tmp_path / "one")
    make(tmp_path / "in", tmp_path / "two", jobs=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_second_run_does_only_what_has_changed(tmp_path: Path) -> None:
    root = planted(tmp_path / "in", PACKAGE)
    out = tmp_path / "out"
    made(root, out)
    nothing = made(root, out)
    assert (nothing.read, nothing.written) == ((), ())
    planted(root, {"shop/tax.py": "def of(price: int) -> int:\n    return price // 4\n"})
    some = made(root, out)
    assert some.read == ("shop/tax.py",)
    assert "shop/tax.py_docs" in some.written
    assert "README.md_docs" not in some.written
    assert some.dead_links == ()
    made(root, tmp_path / "fresh")
    assert contents(out) == contents(tmp_path / "fresh")


@pytest.mark.parametrize(
    "change",
    [
        {"shop/tax.py": "def on(price: int) -> int:\n    return price // 5\n"},
        {"shop/tax.py": None},
        {"shop/more.py": "from shop.tax import of\n\nof(1)\n"},
        {"README.md": "# Shop\n\n`shop/tax.py` takes money.\n"},
        {"tests/test_till.py": "from shop import Till\n\n\ndef test_it() -> None:\n    Till()\n"},
        {"shop/till.py": None, "shop/__init__.py": ""},
        {"shop": None},
    ],
)
def test_after_any_change_the_pages_are_those_of_a_fresh_run(
    tmp_path: Path, change: dict[str, str | None]
) -> None:
    root = planted(tmp_path / "in", PACKAGE)
    made(root, tmp_path / "out")
    for path, text in change.items():
        if text is not None:
            planted(root, {path: text})
        elif (root / path).is_dir():
            for file in (root / path).iterdir():
                file.unlink()
            (root / path).rmdir()
        else:
            (root / path).unlink()
    assert made(root, tmp_path / "out").dead_links == ()
    assert dead_in(tmp_path / "out") == []
    made(root, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_a_run_that_was_interrupted_is_made_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = planted(tmp_path / "in", PACKAGE)
    made(root, tmp_path / "out")

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    before = PACKAGE["shop/tax.py"]
    planted(root, {"shop/tax.py": before.replace("5", "6")})
    with monkeypatch.context() as patch:
        patch.setattr("adjoint.atlas.making.dead", interrupted)
        with pytest.raises(KeyboardInterrupt):
            made(root, tmp_path / "out")
    planted(root, {"shop/tax.py": before})
    made(root, tmp_path / "out")
    made(root, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_only_some_files_have_pages(tmp_path: Path) -> None:
    planted(tmp_path / "in", PACKAGE)
    made(tmp_path / "in", tmp_path / "out")
    found = made(tmp_path / "in", tmp_path / "out", only="shop/*")
    assert found.files == 3
    assert not (tmp_path / "out" / "README.md_docs.md").exists()
    page = (tmp_path / "out" / "shop" / "till.py_docs.md").read_text()
    assert "test\\_add" in page  # It is known, but there is no page to link to.
    assert dead_in(tmp_path / "out") == []


def test_times_are_trusted_on_request(tmp_path: Path) -> None:
    root = planted(tmp_path / "in", PACKAGE)
    make(root, tmp_path / "out", jobs=1)
    file = root / "shop" / "tax.py"
    status = file.stat()
    file.write_text(file.read_text().replace("5", "4"))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert make(root, tmp_path / "out", trust_times=True, jobs=1).read == ()
    assert make(root, tmp_path / "out", jobs=1).read == ("shop/tax.py",)


def test_broken_files_have_pages_that_say_so_and_the_rest_is_made(tmp_path: Path) -> None:
    root = planted(tmp_path / "in", PACKAGE)
    for name, content in BROKEN.items():
        (root / name).write_bytes(content)
    (root / "large.py").write_bytes(b"x = 1\n" * (50 << 20 >> 3))
    os.symlink("around", root / "around")
    os.symlink("..", root / "shop" / "up")
    os.mkfifo(root / "pipe.py")
    found = made(root, tmp_path / "out")
    assert found.dead_links == ()
    assert dead_in(tmp_path / "out") == []
    for name in (*BROKEN, *PACKAGE, "large.py", "around", "shop/up", "pipe.py"):
        assert (tmp_path / "out" / f"{name}_docs.md").is_file(), name
    for name in ("syntax.py", "mixed.py", "nul.py", "deep.py", "latin.c", "large.py", "around"):
        assert found.problems[name], name
        page = (tmp_path / "out" / f"{name}_docs.md").read_text()
        assert "Problems" in page
    assert "Till" in (tmp_path / "out" / "shop" / "till.py_kw.md").read_text()


def test_its_own_pages_are_not_documented(tmp_path: Path) -> None:
    root = planted(tmp_path / "in", PACKAGE)
    first = made(root, root / "docs")
    again = made(root, root / "docs")
    assert again.files == first.files == len(PACKAGE)
    assert again.written == ()
    assert made(root, tmp_path / "elsewhere").files == len(PACKAGE)


@pytest.mark.skipif(
    os.geteuid() == 0 and shutil.which("capsh") is None, reason="root reads everything"
)
def test_files_and_folders_that_may_not_be_read_are_named(tmp_path: Path) -> None:
    root = planted(tmp_path / "in", PACKAGE)
    (root / "secret").mkdir(mode=0)
    (root / "shop" / "tax.py").chmod(0)
    command = f"{sys.executable} -m adjoint atlas {root} --out {tmp_path / 'out'} --jobs 1"
    drop = ["capsh", "--drop=cap_dac_override,cap_dac_read_search", "--"]
    shell = [*(drop if os.geteuid() == 0 else ["sh"]), "-c", command]
    done = subprocess.run(shell, capture_output=True, text=True, check=True)
    assert "shop/tax.py: The file cannot be read: Permission denied." in done.stdout
    assert "secret/ cannot be listed" in (tmp_path / "out" / "index.md").read_text()
    assert "Permission denied" in (tmp_path / "out" / "shop" / "tax.py_docs.md").read_text()
    assert (tmp_path / "out" / "shop" / "till.py_docs.md").is_file()
    (root / "secret").chmod(0o700)
