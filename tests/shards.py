"""Which cases of long tables run in `make test`; `make test-all` runs all of them.

For each table of cases: one case in so many is in the default run, the others are marked slow.  The
table was made from durations (`pytest --durations=0`), because the default run should take less
than 15 minutes on two cores; a test belongs here if it has many cases of one kind.
"""

from __future__ import annotations

# By the node id of the test, without its parameters.
ONE_IN: dict[str, int] = {
    "tests/capture/test_control_flow.py::test_control_flow_is_eagers": 2,
    "tests/capture/test_control_flow.py::test_jacobians_of_a_loop": 2,
    "tests/capture/test_inputs.py::test_inputs_that_share_memory": 3,
    "tests/capture/test_inputs.py::test_through_dynamo": 4,
    "tests/differentiate/test_bodies.py::test_derivatives_are_those_of_the_meaning": 2,
    "tests/differentiate/test_bodies.py::test_dynamo_gives_the_same": 2,
    "tests/differentiate/test_bodies.py::test_one_capture_holds_for_other_sizes": 2,
    "tests/differentiate/test_bodies.py::test_transforms_that_batch_agree_with_the_meaning": 3,
    "tests/differentiate/test_opinfo.py::test_gradients_in_single_precision": 2,
    "tests/differentiate/test_opinfo.py::test_gradients_of_complex_numbers": 2,
    "tests/differentiate/test_opinfo.py::test_two_orders_in_double_precision": 2,
    "tests/differentiate/test_segments.py::test_each_result_with_respect_to_each": 2,
    "tests/emit/test_arithmetic.py::test_an_operator_is_what_it_means": 2,
    "tests/loops/test_pointwise.py::test_an_op_is_what_eager_computes": 2,
    "tests/lower/compositions/test_batch_normalization.py::test_modules_train_as_in_eager": 3,
    "tests/lower/definitions/test_reductions.py::test_of_one_tensor": 3,
    "tests/lower/test_draws.py::test_how_numbers_are_spread": 3,
    "tests/lower/test_row_tiles.py::test_a_tiled_program_computes_what_eager_does": 2,
    "tests/lower/test_transposes.py::test_edges": 2,
    "tests/memory/test_report.py::test_the_peak_is_predicted": 2,
    "tests/models/test_transformers.py::test_a_family_compiled_is_as_in_eager": 3,
    "tests/rules/test_alignment.py::test_the_loss_has_a_second_derivative": 3,
    "tests/rules/test_attention.py::test_flash_attention_on_the_cpu_has_a_second_derivative": 4,
    "tests/rules/test_closure.py::test_sizes_may_be_symbols": 3,
    "tests/rules/test_indexing.py::test_reductions_at_indices_have_derivatives": 2,
    "tests/rules/test_linalg.py::test_eigenvalues_and_vectors": 2,
    "tests/rules/test_normalization.py::test_normalizations_have_a_second_derivative": 2,
    "tests/rules/test_normalization.py::test_they_have_a_third": 3,
    "tests/rules/test_reduction.py::test_variances_of_too_few_are_eagers": 3,
    "tests/rules/test_sampling.py::test_two_derivatives": 2,
    "tests/runtime/test_any_sizes.py::test_sizes_that_change_in_each_call": 2,
    "tests/runtime/test_any_sizes.py::test_sizes_through_a_transform": 2,
    "tests/runtime/test_contexts.py::test_a_checkpoint_around_the_first_call": 4,
    "tests/test_interruptions.py::test_a_failure_anywhere": 4,
    "tests/test_memory_comes_back.py::test_nothing_stays_of_a_function_that_is_gone": 3,
    "tests/trace/test_writes.py::test_through_dynamo": 3,
    "tests/transforms/test_api.py::test_transforms_of_each_point_of_a_batch_inside_another": 3,
    "tests/transforms/test_opinfo.py::test_forward_mode": 2,
}
