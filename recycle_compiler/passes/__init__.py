"""From a target to a program, one step and one file at a time."""
