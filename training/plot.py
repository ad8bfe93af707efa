"""The loss plot."""

from __future__ import annotations

from pathlib import Path

import matplotlib

from training.files import replace_file

matplotlib.use("Agg")
from matplotlib import pyplot

SMOOTHING = 0.95


def plot_losses(history: dict, path: Path) -> None:
    """Plot training loss (nats per token, smoothed) above, bits per byte of each validation split below."""
    figure, (above, below) = pyplot.subplots(2, 1, figsize=(8, 8), sharex=True, layout="constrained")
    tokens = [row[0] / 1e6 for row in history["train"]]
    losses = [row[1] for row in history["train"]]
    above.plot(tokens, losses, color="0.85", linewidth=0.6)
    above.plot(tokens, smoothed(losses), color="tab:blue")
    above.set_ylabel("training loss (nats per token)")
    above.set_ylim(bottom=min(losses, default=0) - 0.1, top=min(7.0, max(losses, default=7)))
    for name in history["valid"][0][1] if history["valid"] else ():
        below.plot(
            [row[0] / 1e6 for row in history["valid"]],
            [row[1][name] for row in history["valid"]],
            "o-",
            label=name,
        )
    below.set_ylabel("validation, bits per byte")
    below.set_xlabel("tokens seen (millions)")
    if history["valid"]:
        below.legend()
    replace_file(path, lambda part: figure.savefig(part, format="png", dpi=110))
    pyplot.close(figure)


def smoothed(values: list[float]) -> list[float]:
    """Return the exponential moving average, with bias correction."""
    average, weight, smooth = 0.0, 0.0, []
    for value in values:
        average = SMOOTHING * average + (1 - SMOOTHING) * value
        weight = SMOOTHING * weight + (1 - SMOOTHING)
        smooth.append(average / weight)
    return smooth
