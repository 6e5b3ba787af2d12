"""What a bug report should say about a machine, and what on it would get in the way of a job."""
