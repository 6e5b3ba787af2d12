"""Description of a machine for a bug report, and what on it would get in the way of a job."""
