"""`recyclec`: arguments, output, progress, signals, and one file for each command."""
