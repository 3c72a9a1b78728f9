"""adjoint: an ahead-of-time differentiating compiler for PyTorch."""

from adjoint.backend import FallbackWarning, compile
from adjoint.compiler import capture, run
from adjoint.errors import CaptureError
from adjoint.options import Options

__all__ = ["CaptureError", "FallbackWarning", "Options", "capture", "compile", "run"]
