"""Where a command adds its parser. Standard library only."""

import argparse
from typing import Any, Protocol


class Parsers(Protocol):
    """What `ArgumentParser.add_subparsers` returns."""

    def add_parser(self, name: str, **options: Any) -> argparse.ArgumentParser: ...
