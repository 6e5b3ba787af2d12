"""Writes a file of tokens, one byte each, from texts.

python tokens.py ../../README.md ../../docs/*.md -o tokens.bin
"""

import argparse
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("texts", nargs="+", type=Path)
parser.add_argument("-o", dest="out", type=Path, required=True)
options = parser.parse_args()
options.out.write_bytes(b"\n".join(text.read_bytes() for text in options.texts))
