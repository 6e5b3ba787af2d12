"""Why a plan takes as long as it does, what changed between two plans, where the time of a run went."""
