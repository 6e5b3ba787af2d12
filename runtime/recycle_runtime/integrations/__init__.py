"""Engines that start a job from Python: each in a package of its own, which alone imports the engine.

words   what the user asks for, as the command lines of coordinator and agents
ray     coordinator and agents as actors
torchx  a component for its schedulers
"""
