"""What a fleet of machines that fail and come back makes of a job, under different ways to survive."""
