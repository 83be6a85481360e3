"""The command `lastword`, also as `python -m lastword`.

Apart from `cli.main`, so that Ctrl-C while that is being imported ends as quietly as later.
"""

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    try:
        from lastword.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
