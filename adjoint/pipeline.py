"""Which passes run, where, in which order.

Each tuple is for one place of the pipeline (`passes.py`); a user's own passes, given by the option
`passes`, are inserted among them.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from adjoint.errors import RewriteError
from adjoint.lower.decompositions import decompose
from adjoint.lower.draws import draw_in_kernels
from adjoint.lower.partial_writes import join_writes
from adjoint.lower.value_numbering import merge_equal_values
from adjoint.optimize import (
    algebra,
    broadcasts,
    casts,
    convolution_bias,
    parts,
    products,
    quantized,
    softmax,
    uniform,
    views,
)
from adjoint.optimize.algebra import simplify_algebra
from adjoint.optimize.attention import fuse_attention
from adjoint.optimize.broadcasts import push_broadcasts
from adjoint.optimize.casts import cancel_casts
from adjoint.optimize.convolution_bias import split_convolution_bias
from adjoint.optimize.cse import merge_common_subexpressions
from adjoint.optimize.custom_functions import inline_custom_functions
from adjoint.optimize.heads import chunk_cross_entropy
from adjoint.optimize.literals import fold_literals
from adjoint.optimize.loops import unroll_loops
from adjoint.optimize.masks import narrow_masks
from adjoint.optimize.memory_formats import choose_memory_format
from adjoint.optimize.parts import join_parts
from adjoint.optimize.products import join_products
from adjoint.optimize.quantized import multiply_integers
from adjoint.optimize.softmax import recognize_softmax
from adjoint.optimize.uniform import fold_uniform_values
from adjoint.optimize.views import merge_views
from adjoint.options import Options
from adjoint.partition.dropout import open_dropout
from adjoint.partition.offloading import fetch_ahead
from adjoint.partition.softmax import close_softmax, open_softmax
from adjoint.passes import Pass, Place, extended
from adjoint.target import Target, cpu_target

MERGE = Pass("merge-common-subexpressions", merge_common_subexpressions)
OPEN_SOFTMAX = Pass("open-softmax", open_softmax)
OPEN_DROPOUT = Pass("open-dropout", open_dropout)
CLOSE_SOFTMAX = Pass("close-softmax", close_softmax)
MERGE_VIEWS = Pass("merge-views", merge_views, rules=views.RULES)
SIMPLIFY_ALGEBRA = Pass("simplify-algebra", simplify_algebra, rules=algebra.RULES)
PUSH_BROADCASTS = Pass("push-broadcasts", push_broadcasts, rules=broadcasts.RULES)
MULTIPLY_INTEGERS = Pass("multiply-integers", multiply_integers, rules=quantized.RULES)
JOIN_PARTS = Pass("join-parts", join_parts, rules=parts.RULES)
JOIN_PRODUCTS = Pass("join-products", join_products, rules=products.RULES)
CANCEL_CASTS = Pass("cancel-casts", cancel_casts, rules=casts.RULES)
FOLD_UNIFORM_VALUES = Pass("fold-uniform-values", fold_uniform_values, rules=uniform.RULES)
RECOGNIZE_SOFTMAX = Pass("recognize-softmax", recognize_softmax, rules=softmax.RULES)
UNROLL_LOOPS = Pass("unroll-loops", unroll_loops)
INLINE_CUSTOM_FUNCTIONS = Pass("inline-custom-functions", inline_custom_functions)
FOLD_LITERALS = Pass("fold-literals", fold_literals)
NARROW_MASKS = Pass("narrow-masks", narrow_masks)
SPLIT_CONVOLUTION_BIAS = Pass(
    "split-convolution-bias", split_convolution_bias, "primal", rules=convolution_bias.RULES
)
CHOOSE_MEMORY_FORMAT = Pass("choose-memory-format", choose_memory_format)
DECOMPOSE = Pass("decompose", decompose)
FETCH_AHEAD = Pass("fetch-ahead", fetch_ahead)

# On a forward graph that is to be differentiated again.
FORWARD = (CLOSE_SOFTMAX,)

# On a joint graph, before it is split.  Merged again: parts of an opened softmax may already exist.
JOINT = (
    MERGE,
    FOLD_LITERALS,
    CANCEL_CASTS,
    SIMPLIFY_ALGEBRA,
    MERGE_VIEWS,
    JOIN_PARTS,
    CHOOSE_MEMORY_FORMAT,
    OPEN_SOFTMAX,
    OPEN_DROPOUT,
    MERGE,
)

# On the transpose of a backward graph, and on segments that were joined again.
LINEAR = (MERGE,)

# On a graph that is about to run.
POST = (
    UNROLL_LOOPS,
    INLINE_CUSTOM_FUNCTIONS,
    CHOOSE_MEMORY_FORMAT,
    FOLD_LITERALS,
    FOLD_UNIFORM_VALUES,
    PUSH_BROADCASTS,
    SIMPLIFY_ALGEBRA,
    JOIN_PRODUCTS,
    MULTIPLY_INTEGERS,
    NARROW_MASKS,
)


def primal(wrt: Sequence[int], eager_rng: bool | None = None) -> tuple[Pass, ...]:
    """On a program, before it is differentiated with respect to the inputs at positions `wrt`.

    `eager_rng`: the option; if it is true, random numbers must be those that eager draws.
    """
    fuse = partial(fuse_attention, wrt=tuple(wrt), drops=not eager_rng)
    return (
        SPLIT_CONVOLUTION_BIAS,
        # Scales and fills of masks become numbers.
        FOLD_LITERALS,
        RECOGNIZE_SOFTMAX,
        Pass("fuse-attention", fuse, "primal"),
        Pass("chunk-cross-entropy", partial(chunk_cross_entropy, wrt=tuple(wrt)), "primal"),
    )


def lowering(target: Target, overwrites: bool = False) -> tuple[Pass, ...]:
    """On the same graph, before it is lowered for `target`.

    `overwrites`: new values of inputs may be stored in the inputs.
    """
    return tuple(each for each, runs in _lowering(target, overwrites) if runs)


def _lowering(target: Target, overwrites: bool) -> tuple[tuple[Pass, bool], ...]:
    """The passes before lowering for any target, in order, and whether each runs for `target`."""
    join = Pass("join-writes", partial(join_writes, overwrites=overwrites))
    draw = Pass("draw-in-kernels", partial(draw_in_kernels, device=target.device))
    merge = Pass("merge-equal-values", partial(merge_equal_values, target=target))
    return (
        (join, target.writes_in_place),
        (draw, target.draws_in_kernels),
        (DECOMPOSE, True),
        (merge, True),
        (FETCH_AHEAD, True),
    )


def all_places() -> dict[str, tuple[Pass, ...]]:
    """All passes of all targets by where they run; users cannot name the last two places."""
    return {
        "primal": primal(()),
        "joint": JOINT,
        "post": POST,
        "lowering": tuple(each for each, _ in _lowering(cpu_target(), overwrites=False)),
        "forward graphs that are differentiated again": FORWARD,
        "transposes": LINEAR,
    }


PASS_NAMES = frozenset(each.name for passes in all_places().values() for each in passes)


def require_known_passes(options: Options) -> None:
    """Raise an error if options name a pass, or a place among passes, that does not exist."""
    known = {*PASS_NAMES, *(each.name for each in options.passes)}
    for name in options.skip_passes:
        if name not in known:
            raise RewriteError(
                None,
                None,
                None,
                f"option skip_passes names {name!r}; choose from: {', '.join(sorted(known))}",
            )
    # The passes at `lowering` depend on the target, which is not known yet.
    own: dict[Place, tuple[Pass, ...]] = {"primal": primal(()), "joint": JOINT, "post": POST}
    try:
        for place, passes in own.items():
            extended(passes, place, options.passes)
    except ValueError as error:
        raise RewriteError(None, None, None, str(error)) from None
