"""What calculus knows: one rule per op."""
