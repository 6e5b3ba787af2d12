"""One module for each command of `recycle-run`; torch is loaded only by those that train."""
