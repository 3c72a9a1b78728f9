"""Every private torch API that adjoint uses, one module per topic.

Changes of private names in a new torch release are handled here and nowhere else.
"""
