"""Programs of plans: the parts that all targets share."""
