"""Runs the stream of one worker: interpreter, handlers, chunks and their optimizers, tracing."""
