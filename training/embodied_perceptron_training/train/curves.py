"""Learning curves from a run's log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np


def draw_curves(lines: Sequence[Mapping[str, Any]], path: Path) -> None:
    """PNG at ``path``: the losses (logarithmic), the learning rate, the validation figures, over steps."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    train = [line for line in lines if line.get("event") == "train"]
    checks = [line for line in lines if line.get("event") == "validation"]
    figure = Figure(figsize=(15, 4.2), layout="constrained")
    losses, rates, figures = figure.subplots(1, 3)
    names = sorted({k for line in train for k in line if k.startswith("loss/")})
    for name in ["loss", *names]:
        points = [(line["step"], line[name]) for line in train if isinstance(line.get(name), float)]
        if points:
            x, y = np.array(points, float).T
            width = max(1, len(y) // 50)
            smooth = np.convolve(y, np.ones(width) / width, mode="valid")  # mean over 2 % of the run
            losses.plot(x[width - 1 :], smooth, label=name.removeprefix("loss/"), linewidth=2 if name == "loss" else 1)
    losses.set(title="losses", xlabel="step", yscale="log")
    rates.plot([line["step"] for line in train], [line["rate"] for line in train])
    rates.set(title="learning rate", xlabel="step")
    keys = sorted({k for line in checks for k, v in line["figures"].items() if isinstance(v, (int, float))})
    shown = [k for k in keys if "/" not in k] or keys  # figures of single classes and subsets would hide the others
    for key in shown[:12]:
        points = [(line["step"], line["figures"][key]) for line in checks if key in line["figures"]]
        figures.plot(*zip(*points, strict=True), marker=".", label=key)
    figures.set(title="validation", xlabel="step")
    for axes in (losses, figures):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=7)
    FigureCanvasAgg(figure).print_png(str(path))  # type: ignore[no-untyped-call]
