"""What the processes of a job say to each other, a module for each conversation; `wire` has them all."""
