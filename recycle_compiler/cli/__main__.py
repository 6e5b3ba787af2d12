"""`python -m recycle_compiler.cli`: the same as `recyclec`."""

import sys

from recycle_compiler.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
