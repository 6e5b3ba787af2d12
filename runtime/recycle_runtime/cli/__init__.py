"""`recycle-run`: one file for each command."""
