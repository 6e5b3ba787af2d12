"""Messages between the processes of a job, a module for each conversation; `wire` has them all."""
