"""The presets of this recipe: `cpu` (the model that ships), `gpu` (a larger run), `tiny` (a smoke test)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

VOCAB_SIZE = 8192
CONTEXT_LENGTH = 1024


@dataclass(frozen=True)
class ModelShape:
    """Dimensions of the Llama network. `heads * head_size` may differ from `hidden`."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    feed_forward: int
    head_size: int = 64
    vocabulary: int = VOCAB_SIZE
    context: int = CONTEXT_LENGTH
    rope_theta: float = 10_000.0


@dataclass(frozen=True)
class Stage:
    """A part of training with one sequence length and one mixture of sources.

    `until` is the fraction of the whole run at which the stage ends.
    `mixture` maps a source's name to its share of the tokens (normalised on use).
    """

    until: float
    sequence_length: int
    mixture: dict[str, float]


@dataclass(frozen=True)
class Preset:
    """Everything that defines a run, except the folders of its data and outputs.

    The run ends after `minutes` of training time or after `tokens` tokens, whichever is set; the learning rate follows
    the same measure.
    """

    name: str
    shape: ModelShape
    stages: tuple[Stage, ...]
    minutes: float | None = None
    tokens: int | None = None
    tokens_per_step: int = 8_192
    tokens_per_microbatch: int = 4_096
    muon_learning_rate: float = 0.015
    adam_learning_rate: float = 0.003
    weight_decay: float = 0.05
    momentum: float = 0.95
    warmup_steps: int = 80
    decay_from: float = 0.7
    final_learning_rate: float = 0.02
    checkpoint_every_seconds: float = 120.0
    validate_every_seconds: float = 600.0
    seed: int = 20261121
    evaluation: dict[str, int] = field(
        default_factory=lambda: {
            "bits_per_byte_bytes": 60_000,
            "lambada_items": 5_153,
            "infill_items": 200,
            "agreement_tokens": 2_000,
            "samples": 10,
        }
    )

    def as_dict(self) -> dict:
        """Return the preset as JSON values, for checkpoints and the figures file."""
        return asdict(self)


# A short run is too small for the wide mixture: simple, short stories have priority.
BROAD_CPU = {
    "tinystories": 0.30,
    "fairytaleqa": 0.11,
    "storybooks_cc_by": 0.06,
    "chilit": 0.22,
    "children_classics": 0.09,
    "plain_fiction": 0.02,
    "python_stdlib": 0.20,
}
CHILD_LEVEL = {
    "tinystories": 0.44,
    "fairytaleqa": 0.12,
    "storybooks_cc_by": 0.08,
    "chilit": 0.14,
    "children_classics": 0.02,
    "python_stdlib": 0.20,
}
# plain_fiction x1, chilit and children_classics x3, fairytaleqa and storybooks x4,
# tinystories x6, code x2: the shares of tokens with these repetitions.
BROAD_GPU = {
    "plain_fiction": 0.37,
    "chilit": 0.245,
    "children_classics": 0.135,
    "fairytaleqa": 0.045,
    "storybooks_cc_by": 0.02,
    "tinystories": 0.08,
    "python_stdlib": 0.105,
}

PRESETS = {
    "cpu": Preset(
        name="cpu",
        shape=ModelShape(hidden=384, layers=4, heads=6, kv_heads=2, feed_forward=1024),
        minutes=88.0,
        stages=(
            Stage(0.60, 256, BROAD_CPU),
            Stage(0.75, 512, BROAD_CPU),
            Stage(0.90, 512, CHILD_LEVEL),
            Stage(1.00, 1024, CHILD_LEVEL),
        ),
    ),
    "gpu": Preset(
        name="gpu",
        shape=ModelShape(hidden=384, layers=8, heads=6, kv_heads=2, feed_forward=1152),
        tokens=260_000_000,
        tokens_per_step=131_072,
        tokens_per_microbatch=65_536,
        muon_learning_rate=0.02,
        adam_learning_rate=0.004,
        warmup_steps=100,
        stages=(
            Stage(0.60, 512, BROAD_GPU),
            Stage(0.75, 1024, BROAD_GPU),
            Stage(1.00, 1024, CHILD_LEVEL),
        ),
    ),
    "tiny": Preset(
        name="tiny",
        shape=ModelShape(hidden=128, layers=2, heads=2, kv_heads=1, feed_forward=256),
        minutes=1.0,
        tokens_per_step=4096,
        tokens_per_microbatch=4096,
        warmup_steps=10,
        checkpoint_every_seconds=10.0,
        validate_every_seconds=30.0,
        stages=(Stage(0.7, 256, BROAD_CPU), Stage(1.0, 512, CHILD_LEVEL)),
        evaluation={
            "bits_per_byte_bytes": 4_000,
            "lambada_items": 20,
            "infill_items": 8,
            "agreement_tokens": 300,
            "samples": 2,
        },
    ),
}
