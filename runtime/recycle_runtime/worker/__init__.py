"""A worker process of a job that outlives failures.

link        the line to the coordinator
pulse       signs of life
stage       the part of the model that it holds
session     one generation: group, plan, stream
copies      the state of a stage, from one process to another
faults      harm done on purpose
member      what it does with its life
"""
