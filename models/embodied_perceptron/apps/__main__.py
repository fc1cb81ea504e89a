"""The ``embodied-perceptron`` program: an interrupt while its imports are still at work ends it in a word as well."""

from __future__ import annotations

import sys
from typing import NoReturn

from embodied_perceptron.apps.errors import EXIT_INTERRUPTED


def main() -> NoReturn:
    """Entry point of the console script; the imports take half a second, several on a busy machine."""
    try:
        from embodied_perceptron.apps.cli import main as run
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(EXIT_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
