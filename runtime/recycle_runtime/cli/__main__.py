"""`python -m recycle_runtime.cli`: the same as `recycle-run`."""

import sys

from recycle_runtime.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
