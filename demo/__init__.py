"""`make demo`: two networks trained on derivatives, by eager torch and by adjoint side by side."""
