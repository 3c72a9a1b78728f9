"""Graphs, plans, kernels and descriptors as text that reads back: what is kept is data.

A `Form` (`form.py`) is a closed list of dataclasses, operators by name and schema, and expressions.
Reading checks every field against its annotation and every number of a plan against its bounds, and
never runs code that comes from the text.

A graph is written relative to its *ground*, the graph that it was made of (`graphs.py`): the user's
lines, origins and constants are numbers and names of that graph.  So a program is found again
though its source file moved, and its errors name the lines of today.
"""
