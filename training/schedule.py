"""The progress of a run, and the stage and learning rate that depend on it."""

from __future__ import annotations

from training.presets import Preset

MAX_COUNTED_STEP_FACTOR = 5.0
"""A step counts as at most this many typical steps, so that a suspended process loses no training time."""


class Clock:
    """Training time and tokens spent, kept in the checkpoint.

    Only time spent in training steps counts, so neither a kill nor a suspension (SIGSTOP, a sleeping laptop) shortens
    the run.
    """

    def __init__(self, preset: Preset, seconds: float = 0.0, tokens: int = 0, steps: int = 0) -> None:
        self._preset = preset
        self.seconds = seconds
        self.tokens = tokens
        self.steps = steps
        self._typical: float | None = None

    def count(self, seconds: float, tokens: int) -> None:
        """Add one step that took `seconds` and trained on `tokens`.

        The first step after a start, which compiles the network, adds no time.
        """
        if self._typical is not None:
            seconds = min(seconds, MAX_COUNTED_STEP_FACTOR * self._typical) if self._typical else seconds
            self._typical = 0.9 * self._typical + 0.1 * seconds if self._typical else seconds
            self.seconds += seconds
        else:
            self._typical = 0.0
        self.tokens += tokens
        self.steps += 1

    @property
    def progress(self) -> float:
        """The completed fraction of the run, 0 to 1."""
        if self._preset.minutes is not None:
            return min(1.0, self.seconds / (60 * self._preset.minutes))
        return min(1.0, self.tokens / self._preset.tokens)

    @property
    def seconds_left(self) -> float:
        """Estimated remaining training time."""
        return self.seconds * (1 / self.progress - 1) if self.progress > 0 else float("inf")

    @property
    def stage_number(self) -> int:
        """Index of the current stage."""
        for number, stage in enumerate(self._preset.stages):
            if self.progress < stage.until:
                return number
        return len(self._preset.stages) - 1

    @property
    def learning_rate_scale(self) -> float:
        """Factor of the peak rates: warm-up, then constant, then linear decay."""
        warmup = min(1.0, (self.steps + 1) / self._preset.warmup_steps)
        if self.progress <= self._preset.decay_from:
            return warmup
        decayed = (self.progress - self._preset.decay_from) / (1 - self._preset.decay_from)
        return warmup * (1 - decayed * (1 - self._preset.final_learning_rate))

    def state(self) -> dict[str, float]:
        """Return plain values for the checkpoint."""
        return {"seconds": self.seconds, "tokens": self.tokens, "steps": self.steps}
