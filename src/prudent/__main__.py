"""`prudent`, `python -m prudent`, and so `torchrun -m prudent`: the same command line."""

import sys


def main() -> int:
    """Runs the command line; Ctrl-C while it is imported ends it quietly as well."""
    try:
        from prudent.cli import main as run  # typer and others, which take a while

        return run()
    except KeyboardInterrupt:
        print("Stopped.", file=sys.stderr)
        return 130  # as of a command that is stopped while it runs


if __name__ == "__main__":
    sys.exit(main())
