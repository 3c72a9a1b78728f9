"""Rewriting: rules that replace one way to compute a value by another, and the engine that applies
them.

A rule is a pattern (`patterns.py`), written with operators or traced from a torch function
(`tracing.py`), and what to put in its place (`rules.py`).  `engine.py` applies rules to a graph.
"""
