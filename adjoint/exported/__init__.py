"""Exported programs: one file that runs without a compiler.

A file holds plans, machine code, parameters, and how the program is called and differentiated.
Reading validates all of it before anything is mapped; what does not fit this machine, or a call, is
refused with the reason.
"""
