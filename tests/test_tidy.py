"""House rules as tests. CONTRIBUTING gives their reasons.

Each rule is a function from text to the violations in it, so that it can be shown to find some.
"""

import ast
import functools
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.source_files import PACKAGE, ROOT, relative, sources, written_here

MAX_LINES = 600

# Module without a test file of its own: where it is tested instead.
TESTED_ELSEWHERE: dict[str, str] = {
    "adjoint/__main__.py": "tests/test_cli.py",
    "adjoint/open_types.py": "types alone; tests/test_tidy.py",
    "adjoint/optimize/scores.py": "scores are those of attention; tests/optimize/test_attention.py",
    "adjoint/runtime/executable.py": "types alone; tests/runtime/test_bridge.py",
}

# File over MAX_LINES: the table it holds.
FLAT_TABLES: dict[str, str] = {}

# Names that say nothing about what is inside.
EMPTY_NAMES = {"utils", "helpers", "common", "core", "misc", "base", "manager"}

# Spelled in pieces, so that this file obeys the rule.
PROMISES = ["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]


def expected_test(module: str) -> str:
    """adjoint/<package>/<module>.py -> tests/<package>/test_<module>.py"""
    path = Path(module)
    return Path("tests", *path.parts[1:-1], f"test_{path.name}").as_posix()


def has_empty_name(path: str) -> bool:
    return any(
        word in EMPTY_NAMES for part in Path(path).with_suffix("").parts for word in part.split("_")
    )


def defined_twice(text: str) -> list[str]:
    """Names of a module that are assigned twice, of which the first value is lost."""
    seen: set[str] = set()
    found: list[str] = []
    for statement in ast.parse(text).body:
        if not isinstance(statement, ast.Assign):
            continue
        read = {each.id for each in ast.walk(statement.value) if isinstance(each, ast.Name)}
        for target in statement.targets:
            if isinstance(target, ast.Name):
                if target.id in seen and target.id not in read:
                    found.append(target.id)
                seen.add(target.id)
    return found


def promises(text: str) -> list[str]:
    word = re.compile(rf"\b({'|'.join(PROMISES)})\b")
    return [f"line {n}" for n, line in enumerate(text.splitlines(), 1) if word.search(line)]


def dotted_names(text: str) -> Iterator[tuple[int, str]]:
    """Every name imported, and every attribute chain that starts at one, in full."""
    tree = ast.parse(text)
    meaning: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                top = alias.name.partition(".")[0]
                meaning[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield node.lineno, name
                meaning[alias.asname or alias.name] = name
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            parts: list[str] = []
            value: ast.expr = node
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
            if isinstance(value, ast.Name) and value.id in meaning:
                yield node.lineno, ".".join([meaning[value.id], *reversed(parts)])


def is_private_torch(name: str) -> bool:
    """A name torch may change at any release. Operators are named by torch.ops and are stable."""
    top, *parts = name.split(".")
    if top != "torch" or parts[:1] == ["ops"]:
        return False
    if parts[:2] == ["fx", "experimental"]:
        return True
    return any(part.startswith("_") and not part.endswith("__") for part in parts)


def is_a_peer(name: str) -> bool:
    """AOTAutograd and Inductor are oracles in tests and rows in benchmarks, never dependencies."""
    peers = ("torch._inductor", "torch._functorch.aot_autograd", "torch._functorch._aot_autograd")
    return any(name == peer or name.startswith(f"{peer}.") for peer in peers)


def is_pickle(name: str) -> bool:
    return name.partition(".")[0] in {"pickle", "cPickle", "_pickle", "cloudpickle", "dill"}


def is_environment(name: str) -> bool:
    return name in {"os.getenv", "os.putenv"} or name.startswith("os.environ")


def is_clock(name: str) -> bool:
    return name.partition(".")[0] == "time"


def questions_of_device(text: str) -> list[str]:
    """Lines that decide by a device: a target is asked instead."""
    asks = re.compile(r"device\.type|\bis_cuda\b|[!=]= CPU\b")
    return [f"line {n}" for n, line in enumerate(text.splitlines(), 1) if asks.search(line)]


def raw_fake_values(text: str) -> list[str]:
    """Lines that read or write fake values of nodes without an accessor."""
    raw = re.compile(
        r"""\.meta\[["']val["']\]|\.meta\.get\(["']val["']|["']val["'] (not )?in \w+\.meta"""
    )
    return [f"line {n}" for n, line in enumerate(text.splitlines(), 1) if raw.search(line)]


def uses(text: str, claim: Callable[[str], bool]) -> list[str]:
    return sorted({f"line {line}: {name}" for line, name in dotted_names(text) if claim(name)})


def in_package(claim: Callable[[str], bool], outside: str | None = None) -> list[str]:
    return [
        f"{relative(path)} {use}"
        for path in sources("adjoint")
        if outside is None or not relative(path).startswith(outside)
        for use in uses(path.read_text(), claim)
    ]


def test_each_module_has_its_test_file() -> None:
    modules = {relative(path) for path in sources("adjoint") if path.name != "__init__.py"}
    untested = {module for module in modules if not (ROOT / expected_test(module)).exists()}
    assert untested == TESTED_ELSEWHERE.keys()


def test_the_test_file_mirrors_the_module() -> None:
    assert expected_test("adjoint/options.py") == "tests/test_options.py"
    assert expected_test("adjoint/capture/trace.py") == "tests/capture/test_trace.py"


def test_names_say_what_is_inside() -> None:
    assert [relative(path) for path in written_here() if has_empty_name(relative(path))] == []


@pytest.mark.parametrize(
    "path", ["adjoint/utils.py", "adjoint/core/trace.py", "tests/test_helpers.py"]
)
def test_an_empty_name_is_found(path: str) -> None:
    assert has_empty_name(path)


def test_no_file_is_too_long_to_read() -> None:
    long = {relative(p) for p in written_here() if len(p.read_text().splitlines()) > MAX_LINES}
    assert long == FLAT_TABLES.keys()


def test_no_name_of_a_module_is_defined_twice() -> None:
    found = [
        f"{relative(p)} {name}" for p in written_here() for name in defined_twice(p.read_text())
    ]
    assert not found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("LIMIT = 8192\nOTHER = 1\nLIMIT = 4096", ["LIMIT"]),
        ("PAIRS = (1, 2)\nPAIRS = PAIRS[1:]", []),
        ("limit: int\nlimit = 3", []),
    ],
)
def test_a_name_that_is_defined_twice_is_found(text: str, found: list[str]) -> None:
    assert defined_twice(text) == found


def test_nothing_is_left_for_later() -> None:
    found = [
        f"{relative(path)} {at}" for path in written_here() for at in promises(path.read_text())
    ]
    assert found == []


def test_something_left_for_later_is_found() -> None:
    for promise in PROMISES:
        assert promises(f"x = 1\n# {promise}: more\n") == ["line 2"]
    assert promises("hackneyed, todo list\n") == []


def test_private_torch_is_reached_through_torch_private() -> None:
    assert in_package(is_private_torch, outside="adjoint/torch_private/") == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import torch._dynamo", ["line 1: torch._dynamo"]),
        ("import torch.utils._pytree as pytree", ["line 1: torch.utils._pytree"]),
        ("from torch._subclasses import FakeTensor", ["line 1: torch._subclasses.FakeTensor"]),
        ("from torch.utils import _pytree", ["line 1: torch.utils._pytree"]),
        ("from torch.fx import experimental", ["line 1: torch.fx.experimental"]),
        ("import torch\ntorch._C", ["line 2: torch._C"]),
        ("import torch as t\nt._check(x)", ["line 2: torch._check"]),
        ("import torch.fx as fx\nfx.experimental", ["line 2: torch.fx.experimental"]),
        (
            "from torch import Tensor\nTensor._make_subclass",
            ["line 2: torch.Tensor._make_subclass"],
        ),
    ],
)
def test_a_private_name_is_found(text: str, found: list[str]) -> None:
    assert uses(text, is_private_torch) == found


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.__version__",
        "import torch\ntorch.ops.aten._to_copy.default",
        "from torch.fx import GraphModule",
        "from adjoint.torch_private import _x",
        "from .trace import _x",
        "x._base",
    ],
)
def test_a_public_name_is_not(text: str) -> None:
    assert uses(text, is_private_torch) == []


def test_peers_are_not_dependencies() -> None:
    assert in_package(is_a_peer) == []


def test_a_peer_is_found() -> None:
    assert uses("from torch._inductor import config", is_a_peer) != []
    assert uses("from torch._functorch import aot_autograd", is_a_peer) != []
    assert uses("from torch._functorch import config", is_a_peer) == []


def test_nothing_is_pickled() -> None:
    assert in_package(is_pickle) == []


def test_pickle_is_found() -> None:
    assert uses("import pickle", is_pickle) != []
    assert uses("from pickle import loads", is_pickle) != []


def test_nothing_reads_the_environment() -> None:
    # Benchmarks start processes, which are given the user's environment.  Where programs are kept
    # is the user's choice, and no part of what a compilation computes.
    own = ("adjoint/bench/", "adjoint/store/place.py")
    found = [use for use in in_package(is_environment) if not use.startswith(own)]
    assert found == []


def test_a_read_of_the_environment_is_found() -> None:
    assert uses("import os\nos.environ['X']", is_environment) != []
    assert uses("from os import getenv", is_environment) != []
    assert uses("import os\nos.cpu_count()", is_environment) == []


def test_stages_are_timed_in_one_place() -> None:
    clocks = {use.partition(" ")[0] for use in in_package(is_clock)}
    assert clocks == {
        "adjoint/bench/measure.py",
        "adjoint/explaining/measuring.py",
        "adjoint/explaining/program.py",
        "adjoint/observing.py",
        "adjoint/progress.py",
        "adjoint/stage_runner.py",
    }


def test_lowering_and_emission_ask_the_target_not_the_device() -> None:
    found = [
        f"{relative(path)} {at}"
        for path in sources("adjoint/lower", "adjoint/emit")
        for at in questions_of_device(path.read_text())
    ]
    assert found == []


def test_a_question_of_the_device_is_found() -> None:
    text = "a = x.device.type == 'cuda'\nb = x.is_cuda\nc = device != CPU\n"
    assert questions_of_device(text) == ["line 1", "line 2", "line 3"]
    assert questions_of_device("if target.has_grid: device = target.device") == []


def test_fake_values_are_read_through_accessors() -> None:
    """`graph/metadata.py` has them; `torch_private/` lies below it."""
    own = ("adjoint/graph/metadata.py", "adjoint/torch_private/")
    found = [
        f"{relative(path)} {at}"
        for path in sources("adjoint")
        if not relative(path).startswith(own)
        for at in raw_fake_values(path.read_text())
    ]
    assert found == []


def test_a_raw_fake_value_is_found() -> None:
    text = 'a = n.meta["val"]\nb = n.meta.get("val")\nc = "val" in n.meta\n'
    assert raw_fake_values(text) == ["line 1", "line 2", "line 3"]
    assert raw_fake_values('made.meta = {"val": 1}\nd = value_of(n)') == []


# Module that may say `Any`: why.
SAYS_ANY = {
    "adjoint/open_types.py": "a name for each value that torch leaves open",
    "adjoint/torch_private/dynamo.py": "wraps functions of Dynamo's, which have long signatures",
}

# How often a package may name an open type, at the most.  A number here may become smaller.
OPEN_TYPES_AT_MOST = {
    "adjoint/atlas": 6,
    "adjoint/backend.py": 2,
    "adjoint/bench": 25,
    "adjoint/capture": 13,
    "adjoint/checking": 5,
    "adjoint/differentiate": 25,
    "adjoint/explaining": 9,
    "adjoint/exported": 8,
    "adjoint/exporting": 4,
    "adjoint/finding.py": 6,
    "adjoint/forms": 16,
    "adjoint/graph": 36,
    "adjoint/loops": 71,
    "adjoint/lower": 14,
    "adjoint/optimize": 9,
    "adjoint/rewrite": 25,
    "adjoint/rules": 14,
    "adjoint/runtime": 55,
    "adjoint/stages.py": 1,
    "adjoint/torch_private": 63,
    "adjoint/trace": 29,
    "adjoint/transforms": 34,
}


def uses_any(text: str) -> list[str]:
    """Lines with the type `Any`."""
    return [
        f"line {node.lineno}"
        for node in ast.walk(ast.parse(text))
        if (isinstance(node, ast.Name) and node.id == "Any")
        or (isinstance(node, ast.Constant) and node.value == "Any")
        or (isinstance(node, ast.Attribute) and node.attr == "Any")
    ]


@functools.cache
def open_types() -> frozenset[str]:
    assigned = ast.parse((PACKAGE / "open_types.py").read_text()).body
    return frozenset(
        node.target.id
        for node in assigned
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    )


def uses_of_open_types(text: str) -> int:
    """How often a module names an open type, besides importing it."""
    names = (node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name))
    return sum(name in open_types() for name in names)


def package_of(path: Path) -> str:
    """adjoint/<package>, or the module at the top."""
    return Path(*path.relative_to(ROOT).parts[:2]).as_posix()


def test_what_has_a_type_has_it() -> None:
    found = {relative(path) for path in sources("adjoint") if uses_any(path.read_text())}
    assert found == SAYS_ANY.keys()


def test_open_types_become_fewer() -> None:
    counted: dict[str, int] = {}
    for path in sources("adjoint"):
        if count := uses_of_open_types(path.read_text()) * (path.name != "open_types.py"):
            counted[package_of(path)] = counted.get(package_of(path), 0) + count
    more = {name: n for name, n in counted.items() if n > OPEN_TYPES_AT_MOST.get(name, 0)}
    assert more == {}, "name the type that the value has, or `object`"


def test_any_is_found() -> None:
    assert uses_any("from typing import Any\nx: list[Any]\nAnything = 1\n") == ["line 2"]
    assert uses_any("import typing\nx = typing.Any\ny = cast('Any', x)") == ["line 2", "line 3"]
    assert {"TorchValue", "OpArgument"} <= open_types()
    text = "from adjoint.open_types import OpArgument\ndef f(x: OpArgument) -> TorchValue: ...\n"
    assert uses_of_open_types(text) == 2


def test_each_module_says_what_it_is() -> None:
    silent = [p for p in sources("adjoint") if ast.get_docstring(ast.parse(p.read_text())) is None]
    assert [relative(path) for path in silent] == []
