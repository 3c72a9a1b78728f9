"""Capturing a program: runs it once on fakes, and makes its graph and calling convention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch

from adjoint.capture.function_mode import CaptureFunctionMode
from adjoint.capture.functions import apply_custom_op
from adjoint.capture.inputs import Inputs, Leaf
from adjoint.capture.results import return_results
from adjoint.errors import CaptureError
from adjoint.failing import call_user_code
from adjoint.graph.captured import CapturedProgram
from adjoint.graph.descriptors import ClosedOver
from adjoint.graph.purity import remove_dead_code
from adjoint.graph.verify import verify
from adjoint.source import line_of_traceback
from adjoint.torch_private import symbols, trees
from adjoint.torch_private.checkpoint import selective_checkpoints_handled_by
from adjoint.torch_private.composites import composites_as_in_eager
from adjoint.torch_private.fake import (
    DATA_DEPENDENT,
    FakeTensor,
    FakeTensorMode,
    bound_cached_fakes,
    op_without_fake,
    reads_missing_data,
)
from adjoint.torch_private.functorch import outside_functorch
from adjoint.torch_private.patches import (
    control_flow_calls_its_operator,
    custom_functions_applied_by,
    custom_ops_applied_by,
)
from adjoint.trace.checkpoints import under_policy
from adjoint.trace.emission import current_mode
from adjoint.trace.generators import Generators
from adjoint.trace.subgraph import finish_graph
from adjoint.trace.tracer import Tracer

_SYMBOLIC = tuple(kind.__name__ for kind in symbols.SYMBOLIC)


class Capture:
    """One capture: a tracer, the inputs of the program, and the tensors it closes over."""

    def __init__(
        self,
        fake_mode: FakeTensorMode,
        make_fake: Callable[[torch.Tensor], torch.Tensor],
        within_levels: bool = False,
    ) -> None:
        """`make_fake` makes a fake of a real tensor that the program closes over.

        `within_levels`: the caller is inside levels of `torch.func`, which the capture leaves.
        """
        self.tracer = Tracer(fake_mode, self.adopt)
        self.inputs = Inputs(self.tracer)
        self.closed_over: list[torch.Tensor] = []
        self._make_fake = make_fake
        self._within_levels = within_levels
        self._fakes: dict[int, torch.Tensor] = {}

    def adopt(self, real: torch.Tensor) -> torch.Tensor:
        """The fake of `real`, a tensor that the program closes over, which becomes an input."""
        if isinstance(real, FakeTensor) and real.fake_mode is self.tracer.fake_mode:
            return real
        if id(real) not in self._fakes:
            # Inside a level of `torch.func`, the fake would be wrapped as a tensor of that level.
            with outside_functorch():
                self._adopt(real)
        return self._fakes[id(real)]

    def _adopt(self, real: torch.Tensor) -> None:
        with self.tracer.paused():
            fake = self._make_fake(real)
        self._fakes[id(real)] = fake
        self.closed_over.append(real)
        descriptor = ClosedOver(len(self.closed_over) - 1, _closure_name(real))
        with self.tracer.inside(self.tracer.root):
            self.inputs.add([Leaf(fake, descriptor)])

    def run(
        self, program: Callable[[], object], leaves: Sequence[Leaf]
    ) -> tuple[CapturedProgram, trees.TreeSpec]:
        """Capture `program`, which takes `leaves`; also returns the pytree spec of its results."""
        mode = current_mode()
        bound_cached_fakes()
        self.inputs.add(leaves)
        generators = Generators()
        self.tracer.about_to_run = generators.drawn_from
        with generators.unset(), self._modes() as function_mode:
            result = trees.map_leaves(function_mode.traced, call_user_code(program))
            self.inputs.refuse_writes_to_joined()
        with self.tracer.fake_mode, torch.no_grad():
            paths, spec = trees.flatten_with_paths(result)
            calling = return_results(self.tracer, self.inputs, paths)
        module = finish_graph(self.tracer.emitter, mode)
        remove_dead_code(module.graph)
        module.recompile()
        verify(module)
        return CapturedProgram(module, calling), spec

    @contextlib.contextmanager
    def _modes(self) -> Iterator[CaptureFunctionMode]:
        function_mode = CaptureFunctionMode(
            self.tracer, self.adopt, self._within_levels, self.inputs.histories
        )
        # Below the tracer, and so active also while the tracer itself runs an op.
        mode = self.tracer.fake_mode
        with (
            _named_errors(),
            _autocast_cache_cleared(),
            self.tracer.fake_mode,
            composites_as_in_eager(),
            self.tracer,
            function_mode,
            control_flow_calls_its_operator(mode),
            selective_checkpoints_handled_by(partial(_under_policy, self.tracer), mode),
            custom_functions_applied_by(function_mode.apply_custom_function, mode),
            custom_ops_applied_by(apply_custom_op, mode),
        ):
            yield function_mode


def _under_policy(
    tracer: Tracer, run: Callable[[], object], policy: Callable[[object], str]
) -> object:
    return under_policy(tracer.emitter, run, policy)


@contextlib.contextmanager
def _named_errors() -> Iterator[None]:
    """Turn torch's errors about what fakes cannot do into errors that name the user's line."""
    try:
        yield
    except Exception as error:
        explained = _explained(error)
        if explained is None:
            raise
        named = CaptureError(*explained, line_of_traceback(error.__traceback__))
        named.depends_on_data = op_without_fake(error) is None
        raise named from error


def _explained(error: Exception) -> tuple[str, str, str] | None:
    """Construct, reason and remedy, if `error` says that fakes do not suffice."""
    text = (str(error) or type(error).__name__).splitlines()[0]
    if isinstance(error, DATA_DEPENDENT) or reads_missing_data(error):
        return (
            "a value that decides what the program does next",
            f"the graph must not depend on data ({text})",
            "use torch.where or torch.cond, or keep this part outside the compiled function",
        )
    op = op_without_fake(error)
    if op is not None:
        return (
            f"op {op}",
            "it has no fake implementation, so its result's shape is unknown",
            "register one with torch.library.register_fake",
        )
    if isinstance(error, TypeError) and any(kind in text for kind in _SYMBOLIC):
        return (
            "a number that was read from a tensor",
            f"its value is known only when the program runs ({text})",
            "keep this use of the number outside the compiled function",
        )
    return None


@contextlib.contextmanager
def _autocast_cache_cleared() -> Iterator[None]:
    """Autocast caches casts of parameters; casts of fakes must not stay in its cache."""
    try:
        yield
    finally:
        torch.clear_autocast_cache()


def _closure_name(tensor: torch.Tensor) -> str:
    return "parameter" if isinstance(tensor, torch.nn.Parameter) else "tensor"
