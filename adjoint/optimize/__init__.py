"""Passes over graphs: a graph in, a better one that computes the same values out.

Each module has one pass, or a few that belong together; `pipeline.py` says where each runs and in
which order.  Most passes are lists of rules (`rewrite/`), each an equation in its docstring.  Two
kinds of merging differ: `cse.py` compares operators and arguments, `lower/value_numbering.py`
compares what kernels would compute for each element.
"""
