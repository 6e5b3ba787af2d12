"""The user's own loop: `recycle-run local PLAN train.py` runs their script in every worker process.

trainer      what a script holds: asks for steps and evaluations
report       what a step came to
given_model  what the script has given, and may not use any more
names        a program, made of what the script gives
script       runs the script, and says what became of it
context      what the script runs in
"""
