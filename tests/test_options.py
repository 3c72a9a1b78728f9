import re
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import torch

from adjoint.options import Options, _legal_values

NAMES = (
    "target, unsupported, cuda_graphs, eager_rng, memory_budget, passes, skip_passes, check, "
    "verify, progress, cache, cache_limit"
)


def test_nothing_asked_gives_the_defaults() -> None:
    options = Options.parse({})
    assert options == Options(
        target="native", unsupported="raise", cuda_graphs=True, eager_rng=None
    )


@pytest.mark.parametrize(
    ("value", "meaning"),
    [(None, False), (False, False), (True, True), ("/here", "/here"), (Path("/here"), "/here")],
)
def test_the_cache(value: object, meaning: object) -> None:
    assert Options.parse({"cache": value}).cache == meaning


@pytest.mark.parametrize("value", [1, "", 0, b"x", []])
def test_no_cache(value: object) -> None:
    with pytest.raises(ValueError, match=r"option cache=.* is not legal; choose a folder"):
        Options.parse({"cache": value})


def test_the_limit_of_the_cache() -> None:
    assert Options.parse({"cache_limit": "2GiB"}).cache_limit == 2 << 30
    for value in (0, -1, 0.5, "many", None, True):
        with pytest.raises(ValueError, match=r"option cache_limit=.* bytes, such as 2\*\*30 or"):
            Options.parse({"cache_limit": value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("target", "native"),
        ("target", "loops"),
        ("target", "reference"),
        ("unsupported", "raise"),
        ("unsupported", "eager"),
        ("cuda_graphs", False),
        ("eager_rng", True),
        ("eager_rng", False),
        ("eager_rng", None),
    ],
)
def test_a_legal_value_is_kept(name: str, value: object) -> None:
    assert getattr(Options.parse({name: value}), name) is value


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        (
            {"taget": "reference"},
            f"unknown option 'taget'; did you mean 'target'? the options are: {NAMES}",
        ),
        (
            {"zzz": 1},
            f"unknown option 'zzz'; the options are: {NAMES}",
        ),
        (
            {3: 1},
            f"unknown option '3'; the options are: {NAMES}",
        ),
        (
            {"unsupported": "ignore"},
            "option unsupported='ignore' is not legal; choose from: 'raise', 'eager'",
        ),
        (
            {"dynamic": True},
            f"unknown option 'dynamic'; the options are: {NAMES}",
        ),
        (
            {"target": ["reference"]},
            "option target=['reference'] is not legal; choose from: 'native', 'loops', 'reference'",
        ),
    ],
)
def test_the_error_lists_what_is_legal(mapping: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        Options.parse(mapping)


def test_an_illegal_value_cannot_be_constructed() -> None:
    with pytest.raises(ValueError, match="target='gpu' is not legal"):
        Options(target="gpu")  # type: ignore[arg-type]


def test_options_do_not_change() -> None:
    options = Options()
    with pytest.raises(FrozenInstanceError):
        options.unsupported = "eager"  # type: ignore[misc]


def test_options_are_given_as_a_mapping_or_as_themselves() -> None:
    options = Options(verify=True)
    assert Options.parse(options) == Options.parse({"verify": True}) == options
    assert Options.parse(None) == Options()


@pytest.mark.parametrize("given", [5, "loops", ["target"]])
def test_other_options_are_refused(given: Any) -> None:
    message = f"options={given!r} is not legal; they are a mapping such as {{'verify': True}}"
    with pytest.raises(ValueError, match=re.escape(message)):
        Options.parse(given)
    with pytest.raises(ValueError, match=re.escape(message)):
        torch.compile(torch.sin, backend="adjoint", options=given)(torch.ones(3))


def test_equal_options_are_one_key() -> None:
    assert len({Options(), Options.parse({}), Options(unsupported="eager")}) == 2


def test_passes_that_are_skipped_are_named() -> None:
    assert Options(skip_passes="merge-views").skip_passes == ("merge-views",)  # type: ignore[arg-type]
    assert Options.parse({"skip_passes": ["a", "b"]}).skip_passes == ("a", "b")
    with pytest.raises(ValueError, match="takes names of passes"):
        Options(skip_passes=(1,))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("value", "meaning"),
    [
        (None, None),
        (4096, 4096),
        (0.5, 0.5),
        (1.0, 1.0),
        ("4096", 4096),
        ("4KiB", 4096),
        ("1.5 MiB", 3 << 19),
        ("2GB", 2 * 10**9),
        ("2G", 2 << 30),
        ("1TiB", 1 << 40),
    ],
)
def test_a_memory_budget_is_bytes_or_a_fraction(value: Any, meaning: Any) -> None:
    assert Options(memory_budget=value).memory_budget == meaning
    assert type(Options(memory_budget=value).memory_budget) is type(meaning)


@pytest.mark.parametrize("value", [0, -1, 0.0, 1.5, True, "much", "4XiB", "-1", [1]])
def test_other_memory_budgets_are_refused(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"memory_budget=.* or a fraction of what saving everything takes"
    ):
        Options(memory_budget=value)


@pytest.mark.parametrize("value", [torch.sin, [torch.sin], "merge-views"])
def test_what_is_no_pass_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"passes has .*; it takes a sequence of what adjoint\."):
        Options.parse({"passes": value})


def test_a_type_of_option_that_is_not_closed_is_refused() -> None:
    with pytest.raises(TypeError, match="an option of type <class 'str'> has no list of legal"):
        _legal_values(str)
