"""``python -m embodied_perceptron_ros.node``: the node as a program that may be interrupted from its first moment on."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


def start() -> NoReturn:
    """Exit code 0 for a signal that comes while the imports are still at work: nothing has begun yet."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: os._exit(0))
    from embodied_perceptron_ros.node.perception_node import leave, main

    leave(main())


if __name__ == "__main__":
    start()
