"""The ``embodied-perceptron`` program; an interrupt during its imports ends it without a traceback."""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Entry point of the console script; the imports take half a second, several on a busy machine."""
    try:
        from embodied_perceptron.apps.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)  # as command_line.EXIT_INTERRUPTED, which may not be imported yet
    run()


if __name__ == "__main__":
    main()
