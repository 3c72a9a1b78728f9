"""Passes over graphs: a graph in, a better one that means the same out."""
