"""Graphs, plans, kernels and descriptors as text that reads back: the payload of cache entries.

A `Form` (`form.py`) is a closed list of dataclasses, operators by name and schema, and expressions.
Reading checks every field against its annotation and every number of a plan against its bounds, and
never runs code that comes from the text.  `vocabulary.py` lists what the text of a graph may name.

A graph is written relative to its *ground*, the graph that it was derived from (`graphs.py`): the
user's lines, origins and constants are numbers and names of that graph.  So a cache entry is found
again after its source file has moved, and its errors name the current lines.
"""
