from __future__ import annotations

from pathlib import Path

import pytest

from adjoint.store.place import default_folder


@pytest.mark.parametrize("off", ["", "0", "off", "None", " false "])
def test_the_variable_says_off(off: str) -> None:
    assert default_folder({"ADJOINT_CACHE": off}) is None


def test_the_variable_names_a_folder() -> None:
    assert default_folder({"ADJOINT_CACHE": "/somewhere"}) == Path("/somewhere")
    assert default_folder({"ADJOINT_CACHE": "~/here"}) == Path.home() / "here"


@pytest.mark.parametrize(
    ("platform", "environment", "folder"),
    [
        ("linux", {"XDG_CACHE_HOME": "/caches"}, Path("/caches/adjoint")),
        ("linux", {"XDG_CACHE_HOME": "caches"}, Path.home() / ".cache" / "adjoint"),
        ("linux", {}, Path.home() / ".cache" / "adjoint"),
        ("darwin", {}, Path.home() / "Library" / "Caches" / "adjoint"),
        ("win32", {"LOCALAPPDATA": "/local"}, Path("/local/adjoint/cache")),
        ("win32", {}, None),
    ],
)
def test_the_convention_of_the_platform(
    platform: str, environment: dict[str, str], folder: Path | None
) -> None:
    assert default_folder(environment, platform) == folder


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.setattr(Path, "home", homeless)
    assert default_folder({}, "linux") is None
