from __future__ import annotations

from typing import get_args

import adjoint.graph.metadata
from adjoint.forms.vocabulary import DESCRIPTORS, GRAPH_FUNCTIONS, KNOWN_META
from adjoint.graph.descriptors import Input, Output


def test_every_descriptor_can_be_written() -> None:
    assert set(DESCRIPTORS) == {*get_args(Input), *get_args(Output)}


def test_a_function_has_one_name() -> None:
    assert len(set(GRAPH_FUNCTIONS.values())) == len(GRAPH_FUNCTIONS)


def test_keys_of_metadata_are_those_that_nodes_have() -> None:
    """Hooks on saved tensors are the only metadata that has no text."""
    documented = adjoint.graph.metadata.__doc__ or ""
    keys = {line.split("`")[1] for line in documented.splitlines() if line.startswith("| `")}
    assert keys - KNOWN_META == {"hooks"}
    assert keys >= KNOWN_META
