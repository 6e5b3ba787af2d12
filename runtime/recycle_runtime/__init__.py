"""The runtime of recyclec: owns the instruction set and the bundle format, and runs streams."""
