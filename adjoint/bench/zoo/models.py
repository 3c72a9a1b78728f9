"""The models of the zoo, the systems that each runs on, and the packages that it needs."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from adjoint.bench.problems import Problem
from adjoint.bench.zoo import convolutional, equations, equivariant, molecules
from adjoint.bench.zoo.packaged import TRANSFORMERS, of_torchvision

SYSTEMS = ("eager", "inductor", "func_inductor", "adjoint", "func_adjoint")
PLAIN = ("eager", "inductor", "adjoint")
INSIDE = ("eager", "func_inductor", "adjoint", "func_adjoint")


@dataclass(frozen=True)
class Model:
    """A model at the size for a device, and who can run it."""

    problem: Callable[[str, bool], Problem]
    systems: tuple[str, ...] = PLAIN
    needs: str | None = None
    """A package."""

    @property
    def differentiates(self) -> bool:
        """The step contains derivatives, beside the gradient by which it trains."""
        return self.systems != PLAIN


MODELS: dict[str, Model] = {
    "resnet": Model(convolutional.resnet),
    "convnext": Model(convolutional.convnext),
    "unet": Model(convolutional.unet),
    "efficientnet": Model(of_torchvision("efficientnet_v2_s", 32), needs="torchvision"),
    "swin": Model(of_torchvision("swin_t", 32), needs="torchvision"),
    **{
        name: Model(transformer.problem, needs="transformers")
        for name, transformer in TRANSFORMERS.items()
    },
    "schnet": Model(molecules.schnet, SYSTEMS),
    "painn": Model(molecules.painn, SYSTEMS),
    "dimenet": Model(molecules.dimenet, SYSTEMS, needs="torch_geometric"),
    "equivariant": Model(equivariant.equivariant, SYSTEMS),
    "e3nn": Model(equivariant.e3nn, SYSTEMS, needs="e3nn"),
    "navier-stokes": Model(equations.navier_stokes, SYSTEMS),
    "beam": Model(equations.beam, SYSTEMS),
    "maml": Model(equations.maml, INSIDE),
    "hvp": Model(equations.hessian_product, INSIDE),
    "laplacian": Model(equations.laplacian, INSIDE),
}


def missing(model: str) -> str | None:
    """Why the model cannot run here."""
    needed = MODELS[model].needs
    if needed is None or importlib.util.find_spec(needed) is not None:
        return None
    return f"{needed} is not installed"
