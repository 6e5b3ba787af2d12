"""Explanation of a plan's period: bottleneck, critical path, idle time by cause, bounds, what-if."""
