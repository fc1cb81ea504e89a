"""``python -m embodied_perceptron_ros.node``: run the node; a signal may end it at any time."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the node; exit with code 0 on a signal during the imports."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    from embodied_perceptron_ros.node.perception_node import leave
    from embodied_perceptron_ros.node.perception_node import main as run_node

    leave(run_node())


if __name__ == "__main__":
    main()
