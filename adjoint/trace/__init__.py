"""Writing down what torch ops compute, while they run on fake tensors, as pure nodes of a graph.

Capture traces the user's program; differentiation traces rules, which are ordinary torch as well.
"""
