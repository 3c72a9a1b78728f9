"""Every private torch API that adjoint uses, one module a topic.

A new torch release that moves something is mended here and nowhere else.
"""
