"""What each command of `recyclec` does, one module each, imported only when that command is run.

Every module has `run(arguments, output) -> int`, which returns the exit code.
"""
