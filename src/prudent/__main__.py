"""`python -m prudent`, and so `torchrun -m prudent`: the same command line."""

import sys

from prudent.cli import main

if __name__ == "__main__":
    sys.exit(main())
