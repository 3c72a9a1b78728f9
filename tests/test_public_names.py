"""`import adjoint` is cheap, and its names are there when they are used."""

from __future__ import annotations

import doctest
import inspect
import subprocess
import sys
import warnings

import pytest
import torch

import adjoint


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_importing_the_package_does_not_import_torch() -> None:
    run("import sys, adjoint; assert 'torch' not in sys.modules; dir(adjoint)")


def test_every_public_name_is_there() -> None:
    for name in adjoint.__all__:
        assert callable(getattr(adjoint, name)), name
    with pytest.raises(AttributeError, match="module 'adjoint' has no attribute 'no_such_name'"):
        adjoint.no_such_name  # noqa: B018


def test_capture_is_the_function_whatever_was_imported_first() -> None:
    for first in ("adjoint.capture", "adjoint.backend", "adjoint.capture.dynamo"):
        run(
            f"import {first}\nimport adjoint\nfrom adjoint.capture.direct import capture\n"
            "assert adjoint.capture is capture, adjoint.capture"
        )


def test_modules_are_found_as_attributes() -> None:
    run("import adjoint\nassert adjoint.options.Options is adjoint.Options")
    run("from adjoint import *\nassert capture and grad")


@pytest.mark.parametrize("name", adjoint.__all__)
def test_the_docstring_has_an_example_that_runs(name: str) -> None:
    value = getattr(adjoint, name)
    doc = inspect.getdoc(value) or ""
    test = doctest.DocTestParser().get_doctest(doc, {}, name, None, 0)
    assert test.examples, f"adjoint.{name} has no example"
    said: list[str] = []
    torch.compiler.reset()
    with warnings.catch_warnings():
        runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE, verbose=False)
        runner.run(test, out=said.append, clear_globs=False)
    assert not said, "".join(said)
