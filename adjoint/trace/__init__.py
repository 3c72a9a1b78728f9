"""Tracing: torch ops run on fake tensors and are recorded as pure nodes of a graph.

Capture traces the user's program; differentiation traces derivative rules, which are torch programs
too.
"""
