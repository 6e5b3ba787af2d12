"""Prints what `torchx run` takes for the component: its file and its name."""

from pathlib import Path

print(f"{Path(__file__).with_name('component.py')}:job")
