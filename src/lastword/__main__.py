"""The command `lastword`, also as `python -m lastword`.

A separate module, so that Ctrl-C during the import of `cli.main` also ends without a traceback.
"""

import gc
import sys


def main() -> None:
    """Run the command line and exit with its code."""
    gc.set_threshold(50_000)  # most of what a command makes stays until its end
    try:
        from lastword.cli.main import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
