"""Runs the stream of one worker: interpreter, handlers, the stage and its optimizer, tracing."""
