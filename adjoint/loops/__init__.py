"""Loop nests and plans: a small typed language for kernels, on any target.

* `expressions.py`, `statements.py` - closed unions; a new member is a type error wherever it has to
  be handled.  `operators.py` - the operators of expressions; `pointwise.py` - the formula of each
  pointwise op.
* `plan.py` - a plan: kernel launches, matrix products, library calls and row tiles over numbered
  slots.  It is plain data; `forms/` writes it as text.
* `evaluate.py` - runs a kernel in plain Python: the oracle of every code generator, and the target
  `loops`.
* `verify.py`, `show.py` - checking and printing.
* `teams.py` - how GPU threads share a kernel.
* `footprint.py`, `chain_footprint.py` - the memory that a plan, or several in turn, will use.
"""
