"""From a target to streams, one step and one file at a time."""
