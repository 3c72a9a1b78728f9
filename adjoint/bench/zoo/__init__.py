"""`adjoint bench --zoo`: models that adjoint was not tuned for, written here or by packages."""

from adjoint.bench.zoo.models import MODELS, SYSTEMS, missing
from adjoint.bench.zoo.shown import rendered

__all__ = ["MODELS", "SYSTEMS", "missing", "rendered"]
