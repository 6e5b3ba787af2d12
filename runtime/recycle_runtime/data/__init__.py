"""The data of a program: its micro-batches by number, drawn where and when they are needed."""
