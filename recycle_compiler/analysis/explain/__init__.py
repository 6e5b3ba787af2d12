"""Why a plan takes as long as it does: bottleneck, critical path, idle time by cause, bounds, what-if."""
