"""``python -m embodied_perceptron_ros.node``: the node as a program that may be interrupted at any time."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def main() -> NoReturn:
    """Exit code 0 for a signal that comes while the imports are still at work: nothing has begun yet."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    from embodied_perceptron_ros.node.perception_node import leave
    from embodied_perceptron_ros.node.perception_node import main as run_node

    leave(run_node())


if __name__ == "__main__":
    main()
