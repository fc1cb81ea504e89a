#!/usr/bin/env python3
"""Watch a saved map and print what changed each time a robot or a program writes it.

    python3 examples/watch_changes.py MAP.safetensors

Ctrl-C ends it. `embodied-perceptron diff` compares two files in the same way.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from embodied_perceptron.apps.reading_options import open_map
from embodied_perceptron.scene.changes import compare_maps


def main(arguments: list[str] | None = None) -> int:
    """Compare every new version of the file with the last one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("map", type=Path)
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two looks at the file")
    parser.add_argument("--changes", type=int, default=0, help="end after so many new versions; 0 = never")
    options = parser.parse_args(arguments)

    scene, written_ns = open_map(options.map).recall(), options.map.stat().st_mtime_ns
    print(f"watching {options.map}: {len(scene.objects)} objects", flush=True)
    versions = 0
    while not options.changes or versions < options.changes:
        time.sleep(options.period)
        if (now_ns := options.map.stat().st_mtime_ns) == written_ns:
            continue
        newer, written_ns, versions = open_map(options.map).recall(), now_ns, versions + 1
        print("\n".join(compare_maps(scene, newer).lines()), flush=True)
        scene = newer
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
