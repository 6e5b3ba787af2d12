"""Options of a run, each defined once: its flag, default, help, check, and the commands that have it.

option    one option, and what follows from its definition
run       all options of a run, as the value that processes read
"""
