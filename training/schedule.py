"""How far a run is, and what follows from that: its stage and its learning rate."""

from __future__ import annotations

from training.presets import Preset

LONGEST_COUNTED_STEP = 5.0
"""A step slower than this many typical steps counts as that many: a suspended process loses no training."""


class Clock:
    """Training time and tokens spent, kept in the checkpoint.

    Only time spent in training steps counts, so neither a kill nor a suspension
    (SIGSTOP, a sleeping laptop) shortens the run.
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
            seconds = min(seconds, LONGEST_COUNTED_STEP * self._typical) if self._typical else seconds
            self._typical = 0.9 * self._typical + 0.1 * seconds if self._typical else seconds
            self.seconds += seconds
        else:
            self._typical = 0.0
        self.tokens += tokens
        self.steps += 1

    @property
    def progress(self) -> float:
        """The part of the run that is done, 0 to 1."""
        if self._preset.minutes is not None:
            return min(1.0, self.seconds / (60 * self._preset.minutes))
        return min(1.0, self.tokens / self._preset.tokens)

    @property
    def seconds_left(self) -> float:
        """Estimated training time still to come."""
        return self.seconds * (1 / self.progress - 1) if self.progress > 0 else float("inf")

    @property
    def stage_number(self) -> int:
        """Index of the stage that the run is in."""
        for number, stage in enumerate(self._preset.stages):
            if self.progress < stage.until:
                return number
        return len(self._preset.stages) - 1

    @property
    def learning_rate_scale(self) -> float:
        """Warm-up, then constant, then linear decay: a factor of the peak rates."""
        warm = min(1.0, (self.steps + 1) / self._preset.warmup_steps)
        if self.progress <= self._preset.decay_from:
            return warm
        fall = (self.progress - self._preset.decay_from) / (1 - self._preset.decay_from)
        return warm * (1 - fall * (1 - self._preset.final_learning_rate))

    def state(self) -> dict[str, float]:
        """Plain values for the checkpoint."""
        return {"seconds": self.seconds, "tokens": self.tokens, "steps": self.steps}
