"""The event engine: runs the instruction streams of a plan with times of its own, a second opinion on it."""
