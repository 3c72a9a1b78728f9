from __future__ import annotations

import contextlib
import json
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn

import adjoint
from adjoint import cache, kernels
from adjoint.cache import Cache
from adjoint.compiler import Compiler
from adjoint.errors import CacheWarning
from adjoint.forms import graphs
from adjoint.forms.form import Malformed
from adjoint.options import Options
from adjoint.passes import graph_pass
from adjoint.runtime.cpu import machines
from adjoint.store.entries import unpacked
from adjoint.store.keeping import Store, store_for
from tests.caching import Compilations, Network, fresh, gradients, options
from tests.lowering import graph_of


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Compilations:
    return Compilations(monkeypatch)


@pytest.fixture(autouse=True)
def no_rules_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process in which a user has registered rules keeps no derivatives."""
    monkeypatch.setattr(cache, "USER_RULES", set())


@pytest.fixture(autouse=True)
def no_kernels_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that this process has is not compiled again, and its code is kept elsewhere."""
    monkeypatch.setattr(kernels, "_KERNELS", weakref.WeakValueDictionary())


@pytest.fixture
def store(tmp_path: Path) -> Store:
    found = store_for(str(tmp_path / "cache"), 1 << 30)
    assert found is not None
    return found


def test_a_second_process_compiles_nothing(store: Store, compilations: Compilations) -> None:
    torch.manual_seed(0)
    net, x = Network().double(), torch.randn(7, 3, dtype=torch.float64)
    eager = gradients(net, net, x)
    torch.testing.assert_close(gradients(fresh(net, store), net, x), eager)
    made = {"_captured", "lower", "differentiate_where_possible", "compile_object"}
    assert {*compilations.take()} >= made
    again = gradients(fresh(net, store), net, x)
    torch.testing.assert_close(again, eager)
    assert compilations.take() == []
    assert {each.header.kind for each in store.folder.entries()} == {
        "capture",
        "object",
        "program",
        "derivative",
    }


def test_the_digest_of_a_graph_that_is_kept_stands_for_its_text(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is found by such a digest was made of the same text, whoever asks and when."""
    texts: dict[str, set[str]] = {}
    digest_of_ground = graphs.Ground.__dict__["digest"].func

    def digest(ground: graphs.Ground) -> str:
        found: str = digest_of_ground(ground)
        if ground.graph_module in graphs._DIGESTS:
            texts.setdefault(found, set()).add(ground.text)
        return found

    monkeypatch.setattr(graphs.Ground, "digest", property(digest))
    torch.manual_seed(0)
    net, x = Network().double(), torch.randn(7, 3, dtype=torch.float64)
    for _ in range(2):
        gradients(fresh(net, store), net, x)
        # Other gradients are asked for.
        fresh(net, store)(x.requires_grad_()).sum().backward()
    assert len(texts) > 4
    assert all(len(each) == 1 for each in texts.values())


def test_a_module_of_torchs_has_the_line_that_calls_it_now(store: Store) -> None:
    """Which is that of the process that reads: no file of the one that wrote is in the text."""
    net, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh()), torch.randn(2, 3)
    fresh(net, store)(x)
    store.flush()
    files = [each.path for each in store.folder.entries() if each.header.kind == "capture"]
    assert files
    for file in files:
        payload = unpacked(file.read_bytes()).payload
        assert b"SourceLine" not in payload
        assert Path(__file__).name.encode() not in payload


def test_symbolic_sizes(store: Store, compilations: Compilations) -> None:
    torch.manual_seed(0)
    net = Network().double()
    made: list[str] = []
    for _ in range(2):
        compiled = fresh(net, store, dynamic=True)
        for rows in (7, 5, 9):
            x = torch.randn(rows, 3, dtype=torch.float64)
            torch.testing.assert_close(gradients(compiled, net, x), gradients(net, net, x))
        made = compilations.take()
    assert "lower" not in made


def test_another_size_at_first(store: Store, compilations: Compilations) -> None:
    """A program of symbolic sizes is found whatever sizes the first call has."""
    torch.manual_seed(0)
    net = Network().double()
    made: list[str] = []
    for rows in (7, 50, 3):
        x = torch.randn(rows, 3, dtype=torch.float64)
        compiled = fresh(net, store, dynamic=True)
        torch.testing.assert_close(gradients(compiled, net, x), gradients(net, net, x))
        made = compilations.take()
    assert made == []


def test_transforms(store: Store, compilations: Compilations) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.sin() * x.exp()).sum()

    x = torch.randn(5, dtype=torch.float64)
    expected = torch.func.hessian(f)(x)
    made: list[str] = []
    for turn in range(2):
        store.flush()
        # Another function of the same meaning, which no table of this process knows.
        same: dict[str, Any] = {}
        exec(f"def f{turn}(x):\n    return (x.sin() * x.exp()).sum()\n", same)
        found = adjoint.hessian(same[f"f{turn}"], options=options(store))(x)
        torch.testing.assert_close(found, expected)
        made = compilations.take()
    assert made == []


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"skip_passes": ["simplify-algebra"]}, "skipped passes"),
        ({"eager_rng": False}, "target"),
    ],
)
def test_other_options_are_other_programs(
    store: Store, compilations: Compilations, change: dict[str, Any], why: str
) -> None:
    x = torch.randn(4, 3)

    def f(x: Tensor) -> Tensor:
        return (x * 1.0 + 0.0).sin()

    fresh(f, store)(x)
    compilations.take()
    fresh(f, store, **change)(x)
    store.flush()
    assert "lower" in compilations.take()
    reasons = [each.header.because for each in store.folder.entries()]
    assert any(why in reason for reason in reasons)


# How entries depend on each option: by a fact of this name, or not at all, and why.
DEPENDS_ON = {
    "target": "target",
    "eager_rng": "target",
    "cuda_graphs": "target",
    "skip_passes": "skipped passes",
    "unsupported": "unsupported",
    "memory_budget": "memory budget, target and generator",
}
DOES_NOT_DEPEND_ON = {
    "passes": "nothing is cached with passes of the user's",
    "check": "results are compared after they were computed",
    "verify": "graphs are checked and not changed",
    "progress": "graphs are not looked at",
    "cache": "where entries are",
    "cache_limit": "how many entries there are",
}


def test_each_option_is_among_the_facts_or_changes_nothing_that_is_cached() -> None:
    """An option that a stage reads, and that no fact tells, would be a hit of the wrong entry."""
    assert {*DEPENDS_ON, *DOES_NOT_DEPEND_ON} == set(Options.__dataclass_fields__)
    source = Path(cache.__file__).read_text()
    assert [fact for fact in DEPENDS_ON.values() if f'"{fact}"' not in source] == []


def test_another_cpu_is_another_program(
    store: Store, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin()

    lesser = machines.reduced("x86-64")
    greater = replace(lesser, features="+sse2,+sse3")
    monkeypatch.setattr(machines, "host", lambda: greater)
    fresh(f, store)(torch.randn(4, 3))
    compilations.take()
    monkeypatch.setattr(machines, "host", lambda: lesser)
    fresh(f, store)(torch.randn(4, 3))
    store.flush()
    assert "lower" in compilations.take()
    programs = [each.header for each in store.folder.entries() if each.header.kind == "program"]
    assert any("the CPU has no sse3" in each.because for each in programs)


def test_a_change_of_adjoint_is_another_program(
    store: Store, compilations: Compilations, monkeypatch: pytest.MonkeyPatch
) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin()

    fresh(f, store)(torch.randn(4, 3))
    compilations.take()
    monkeypatch.setattr(cache, "versions", lambda: {"adjoint": "another"})
    fresh(f, store)(torch.randn(4, 3))
    assert "lower" in compilations.take()


def test_a_function_that_moved_is_the_same(store: Store, compilations: Compilations) -> None:
    """And an error names the line where it is now."""
    x, index = torch.randn(4, 3), torch.tensor([0, 9])
    text = "import torch\ndef f(x, i):\n    y = x.sin()\n    return y[i] * 2\n"
    for turn, blank in enumerate(("", "\n\n\n")):
        space: dict[str, Any] = {}
        exec(compile(blank + text, "moved.py", "exec"), space)
        compiled = fresh(space["f"], store)
        compiled(x, torch.tensor([0, 1]))
        made = compilations.take()
        assert ("lower" in made) == (turn == 0)
        with pytest.raises(IndexError, match="out of bounds"):
            compiled(x, index)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def mixed(x: Tensor, w: Tensor) -> Tensor:
    return x @ w + torch.ones(3, device=x.device)


@pytest.mark.parametrize(
    "setting",
    [
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: default_dtype(torch.float64),
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.device("cpu"),
    ],
    ids=["autocast", "default dtype", "no grad", "inference", "device"],
)
def test_captures_depend_on_settings(store: Store, setting: Callable[[], Any]) -> None:
    x, w = torch.randn(4, 3), torch.randn(3, 3, requires_grad=True)
    for _ in range(2):
        for around in (contextlib.nullcontext, setting):
            with around():
                found, expected = fresh(mixed, store)(x, w), mixed(x, w)
            assert found.dtype == expected.dtype
            assert found.requires_grad == expected.requires_grad
            torch.testing.assert_close(found, expected)


def branching(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Branches on a size, selects an element that has to exist, returns a view, and writes."""
    x.add_(1)
    y = x * 2 if x.shape[0] > 4 else x * 3
    return y.sum(0), x[1], y.amax(0)


def test_captures_of_symbolic_sizes(store: Store, compilations: Compilations) -> None:
    """Dynamo's guards are the same, whether a program was captured or read."""
    made: list[str] = []
    for first in (7, 9, 3, 8):
        compiled = fresh(branching, store, dynamic=True)
        compilations.take()
        for rows in (first, 6, 3, 5):
            x = torch.randn(rows, 3, dtype=torch.float64)
            mine, theirs = x.clone(), x.clone()
            found, expected = compiled(mine), branching(theirs)
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(mine, theirs)
            assert found[1]._base is mine
        made = compilations.take()
        # An axis of one has no second element.
        with pytest.raises(Exception, match=r"out of bounds|out of range"):
            compiled(torch.randn(1, 3, dtype=torch.float64))
    assert "_captured" not in made


def test_literals_inside_a_program(store: Store, compilations: Compilations) -> None:
    def f(x: Tensor) -> Tensor:
        return x * torch.tensor([1.0, 2.0, 3.0]) + torch.tensor(0.5)

    x = torch.randn(4, 3)
    made: list[str] = []
    for _ in range(2):
        torch.testing.assert_close(fresh(f, store)(x), f(x))
        made = compilations.take()
    assert made == []


def test_functions_of_the_user_are_captured(store: Store, compilations: Compilations) -> None:
    """A function that Dynamo does not look into may change without a change of the graph."""
    x = torch.randn(3)
    for function in (torch.sin, torch.cos):

        def own(x: Tensor, function: Any = function) -> Tensor:
            found: Tensor = function(x)
            return found

        known: Any = torch.compiler.allow_in_graph(own)
        found = fresh(lambda x, own=known: own(x) * 2, store)(x)
        torch.testing.assert_close(found, function(x) * 2)
        assert "_captured" in compilations.take()


@pytest.mark.parametrize("text", [b"", b"[[],[],3]", b'[[],[],["tuple",1,2,3,4]]'])
def test_what_is_no_capture_is_captured(store: Store, text: bytes) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin() * 7

    x = torch.randn(3)
    fresh(f, store)(x)
    store.flush()
    (entry,) = [each for each in store.folder.entries() if each.header.kind == "capture"]
    store.put("capture", entry.header.facts, text)
    with pytest.warns(CacheWarning, match="made again"):
        torch.testing.assert_close(fresh(f, store)(x), f(x))


def test_passes_of_the_user_are_not_kept(store: Store) -> None:
    """Their code does not tell what they read."""

    @graph_pass("own")
    def own(graph_module: Any) -> Any:
        return graph_module

    fresh(lambda x: x.sin(), store, passes=[own])(torch.randn(3))
    store.flush()
    assert {each.header.kind for each in store.folder.entries()} == {"object", "capture"}


def test_rules_of_the_user_are_not_kept(store: Store) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin().sum()

    with mock.patch.object(cache, "USER_RULES", {torch.ops.aten.sin.default}):
        x = torch.randn(3, requires_grad=True)
        fresh(f, store)(x).backward()
    store.flush()
    assert "derivative" not in {each.header.kind for each in store.folder.entries()}


def test_constants_inside_a_capture(store: Store, compilations: Compilations) -> None:
    """The text of a graph is made while another program is being captured."""
    x = torch.randn(3, dtype=torch.float64)
    made: list[str] = []
    for turn in range(2):
        space: dict[str, Any] = {"torch": torch}
        text = "return (x * torch.tensor([1.0, 2.0, 3.0], dtype=x.dtype)).sin().sum()"
        exec(f"def f{turn}(x):\n    {text}\n", space)
        found = adjoint.grad(space[f"f{turn}"], options=options(store))(x)
        store.flush()
        expected = torch.func.grad(space[f"f{turn}"])(x)
        torch.testing.assert_close(found, expected)
        made = compilations.take()
    assert made == []


def test_a_failure_of_ours_is_no_failure_of_the_compilation(store: Store) -> None:
    f = fresh(lambda x: x.sin(), store)
    failing = mock.patch.object(cache, "Ground", side_effect=LookupError("nothing"))
    with failing, pytest.warns(CacheWarning, match="something: LookupError: nothing"):
        found = f(torch.ones(3))
    torch.testing.assert_close(found, torch.ones(3).sin())


def test_a_program_that_cannot_be_loaded_is_compiled(
    store: Store, compilations: Compilations
) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin() * 5

    fresh(f, store)(torch.ones(3))
    compilations.take()
    again = fresh(f, store)
    failing = mock.patch.object(cache, "load_program", side_effect=LookupError("nothing"))
    with failing, pytest.warns(CacheWarning, match="LookupError: nothing"):
        found = again(torch.ones(3))
    torch.testing.assert_close(found, f(torch.ones(3)))
    assert "lower" in compilations.take()


def test_an_observer_sees_everything_made(store: Store, compilations: Compilations) -> None:
    graph_module = adjoint.capture(lambda x: x.sin() * 2, torch.randn(3)).graph_module
    seen: list[str] = []
    for observer in (None, lambda sighting: seen.append(sighting.stage)):
        more = () if observer is None else (observer,)
        made = Compiler(Options(cache=str(store.folder.path)), *more).native(graph_module)
        assert made is not None
        store.flush()
    assert {"lower", "emit", "load"} <= {*seen}


def test_that_there_is_no_program_is_kept(store: Store, compilations: Compilations) -> None:
    x = torch.randn(4, 4)
    made: list[str] = []
    for _ in range(2):
        torch.testing.assert_close(fresh(torch.linalg.inv, store)(x), torch.linalg.inv(x))
        made = compilations.take()
    assert made == []


def test_code_that_is_gone_is_compiled(store: Store, compilations: Compilations) -> None:
    def f(x: Tensor) -> Tensor:
        return x.sin() * 3

    x = torch.randn(5)
    fresh(f, store)(x)
    store.flush()
    for each in store.folder.entries():
        if each.header.kind == "object":
            each.path.unlink()
    compilations.take()
    torch.testing.assert_close(fresh(f, store)(x), f(x))
    assert "lower" in compilations.take()


@pytest.mark.parametrize("text", [b"", b"{}", b"null", b'{"plan": 3, "code": []}', b"[[],[]]"])
def test_what_is_no_program_is_compiled(store: Store, text: bytes) -> None:
    """Although its digest is right."""
    torch.manual_seed(0)
    net, x = Network().double(), torch.randn(7, 3, dtype=torch.float64)
    eager = gradients(net, net, x)
    gradients(fresh(net, store), net, x)
    store.flush()
    for each in store.folder.entries():
        if each.header.kind != "object":
            store.put(each.header.kind, each.header.facts, text)
    with pytest.warns(CacheWarning, match="made again"):
        torch.testing.assert_close(gradients(fresh(net, store), net, x), eager)


def test_graphs_of_others_have_no_program_kept(store: Store) -> None:
    """A graph of `make_fx` has metadata that adjoint does not know."""
    x = torch.randn(3)
    found = Cache(store, Options()).ground_of(graph_of(lambda x: x.sin(), [x]))
    assert found is None


def test_what_is_no_program_says_why(store: Store) -> None:
    graph_module = adjoint.capture(lambda x: x.sin() * 2, torch.randn(3)).graph_module
    Compiler(Options(cache=str(store.folder.path))).native(graph_module)
    store.flush()
    (entry,) = [each for each in store.folder.entries() if each.header.kind == "program"]
    fields = json.loads(store.get("program", entry.header.facts) or b"")
    ((digest, kind, _, name),) = fields["code"]
    other = adjoint.capture(torch.add, torch.ones(3), torch.ones(3)).graph_module
    for code, at, why in (
        ([], graph_module, "a launch has code"),
        (fields["code"], other, "the plan is of another graph"),
        ([[3, kind, {}, name]], graph_module, "a text is expected"),
        ([[digest, kind, {}, name]], graph_module, "facts are expected"),
    ):
        with pytest.raises(Malformed, match=why):
            cache._read(json.dumps({**fields, "code": code}).encode(), graphs.Ground(at))
