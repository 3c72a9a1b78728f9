"""Rewriting: rules that replace one way to compute a value by another, and the engine that applies
them.

A rule is a pattern (`patterns.py`), written with operators or traced from a torch function with
symbolic sizes (`recording.py`, `tracing.py`), and what to put in its place (`rules.py`): a call, an
existing value, or a torch function that is traced with the values of the match.

The engine (`engine.py`) indexes rules by the operator that their pattern ends in, and applies them
until none matches (`matching.py`) or may be applied (`legality.py`).  It guarantees:

* It works on a copy; after an error the graph is unchanged.
* A match contains no random draw, collective or ordered effect, nor nodes of two grad modes or of
  two checkpoint regions.
* Results of the program stay tensors of their own, with their strides.
* If a replacement has other strides, the fake values of the nodes after it are computed again
  (`refreshing.py`).
* A replacement of another shape or dtype, and rules that undo each other, are a `RewriteError` that
  names rule, pass, node and the user's line.
"""
