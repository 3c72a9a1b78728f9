"""Graphs, plans, kernels and descriptors as text that reads back: what is kept is data.

Reading constructs values of a closed list of types and looks operators up by name.  It never runs
code that comes from the text.
"""
