"""The training loop, with a checkpoint every few minutes."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional
from transformers import LlamaForCausalLM

from training.checkpoint import RunFolder, load_checkpoint, save_checkpoint
from training.corpus import Source
from training.files import replace_json
from training.network import build_network, parameter_count
from training.optimizer import MixedOptimizer
from training.presets import Preset
from training.progress import ProgressBar
from training.schedule import Clock
from training.stream import IGNORED_LABEL, RowStream
from training.tokenizer import END_OF_TEXT, FIM_PAD, special_ids
from training.validation import validation_losses

LossFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


class Interrupted(Exception):
    """The run was stopped by a signal; its checkpoint is written."""


class Trainer:
    """One run: network, optimizer, data stream and clock, which are saved and restored together."""

    def __init__(
        self,
        preset: Preset,
        folder: RunFolder,
        sources: dict[str, Source],
        tokenizer: Tokenizer,
        *,
        compiled: bool = True,
        device: str | None = None,
    ) -> None:
        self.preset, self.folder = preset, folder
        self._sources, self._tokenizer = sources, tokenizer
        self.device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        ids = special_ids(tokenizer)
        network = build_network(preset.shape, ids[END_OF_TEXT], ids[FIM_PAD], preset.seed)
        network = network.to(self.device)
        self.optimizer = MixedOptimizer(
            network,
            muon_learning_rate=preset.muon_learning_rate,
            adam_learning_rate=preset.adam_learning_rate,
            momentum=preset.momentum,
            weight_decay=preset.weight_decay,
        )
        self.network: LlamaForCausalLM = _round_weights(network)
        self._loss = _loss_function(self.network, compiled)
        self.clock = Clock(preset)
        self.stream: RowStream | None = None
        self.history: dict[str, list[Any]] = {"train": [], "valid": [], "served": []}
        self._stop_requested = False
        self._restore()

    def run(self) -> LlamaForCausalLM:
        """Train to the end of the preset's length. Raises Interrupted if a signal stops the run earlier."""
        if self.clock.progress >= 1.0:
            return self.network
        bar = ProgressBar()
        bar.note(
            f"{parameter_count(self.network) / 1e6:.2f}M parameters on {self.device}; "
            f"{self.clock.tokens / 1e6:.2f}M tokens seen so far"
        )
        restore_signals = self._catch_signals()
        self.network.train()
        last_saved = last_validated = time.monotonic()
        try:
            while self.clock.progress < 1.0 and not self._stop_requested:
                self._enter_stage()
                loss, rate = self._timed_step()
                bar.show(self.clock.progress, self.clock.tokens, rate, loss, self.clock.seconds_left)
                if time.monotonic() - last_validated > self.preset.validate_every_seconds:
                    self._validate(bar)
                    last_validated = time.monotonic()
                if time.monotonic() - last_saved > self.preset.checkpoint_every_seconds:
                    self.save()
                    last_saved = time.monotonic()
        finally:
            restore_signals()
        if not self._stop_requested:
            self._validate(bar)
        self.save()
        if self._stop_requested:
            raise Interrupted
        return self.network

    def save(self) -> None:
        """Write the checkpoint and the history."""
        state = {
            "clock": self.clock.state(),
            "optimizer": self.optimizer.state(),
            "stage": self.clock.stage_number if self.stream is None else self._stage,
            "stream": None if self.stream is None else self.stream.state(),
            "history": self.history,
            "random": torch.get_rng_state(),
        }
        save_checkpoint(self.folder, state)
        replace_json(self.folder.history, self.history)

    def _restore(self) -> None:
        """Continue from the last checkpoint if there is one."""
        state = load_checkpoint(self.folder)
        if state is None:
            return
        self.clock = Clock(self.preset, **state["clock"])
        self.optimizer.restore(state["optimizer"])
        self.history = state["history"]
        torch.set_rng_state(state["random"])
        if state["stream"] is not None:
            self._open_stream(state["stage"])
            self.stream.restore(state["stream"])

    def _open_stream(self, number: int) -> None:
        self._stage = number
        self.stream = RowStream(self._sources, self._tokenizer, self.preset.stages[number], number, self.preset.seed)

    def _enter_stage(self) -> None:
        """Open the stream of the next stage when the clock has reached it."""
        number = self.clock.stage_number
        if self.stream is None or number != self._stage:
            if self.stream is not None:
                self.history["served"].append(self.stream.served())
            self._open_stream(number)

    def _timed_step(self) -> tuple[float, float]:
        """Do one optimizer step; return its mean loss (nats per token) and tokens per second."""
        started = time.monotonic()
        length = self.stream.stage.sequence_length
        rows = max(1, self.preset.tokens_per_step // length)
        slice_rows = max(1, self.preset.tokens_per_microbatch // length)
        inputs, labels, weights = (torch.from_numpy(part).to(self.device) for part in self.stream.rows(rows))
        total = 0.0
        for first in range(0, rows, slice_rows):
            part = slice(first, first + slice_rows)
            loss = self._loss(inputs[part], labels[part], weights[part]) * (inputs[part].size(0) / rows)
            loss.backward()
            total += float(loss.detach())
        norm = self.optimizer.step(self.clock.learning_rate_scale)
        seconds = time.monotonic() - started
        self.clock.count(seconds, rows * length)
        self.history["train"].append([self.clock.tokens, round(total, 4), round(norm, 3), round(self.clock.seconds, 1)])
        return total, rows * length / seconds

    def _validate(self, bar: ProgressBar) -> None:
        """Add the validation losses to the history and print them."""
        losses = validation_losses(self.network, self._sources, self._tokenizer, self.device)
        self.history["valid"].append([self.clock.tokens, losses])
        summary = "  ".join(f"{name} {value:.3f}" for name, value in losses.items())
        bar.note(f"bits per byte at {self.clock.tokens / 1e6:.2f}M tokens: {summary}")

    def _catch_signals(self) -> Callable[[], None]:
        """Make Ctrl-C and SIGTERM end the run after the current step; return a function that restores the handlers."""

        def request_stop(_number: int, _frame: Any) -> None:
            self._stop_requested = True

        previous = {number: signal.signal(number, request_stop) for number in (signal.SIGINT, signal.SIGTERM)}
        return lambda: [signal.signal(number, handler) for number, handler in previous.items()] and None


def _round_weights(network: LlamaForCausalLM) -> LlamaForCausalLM:
    """Convert the working weights to bfloat16, in place; buffers (the rotary frequencies) stay float32."""
    for weight in network.parameters():
        weight.data = weight.data.to(torch.bfloat16)
    return network


def _loss_function(network: LlamaForCausalLM, compiled: bool) -> LossFunction:
    """Return a function of inputs, labels (int64) and weights (float32), each [rows, length]: the weighted mean
    cross-entropy in nats. It is compiled if a C++ compiler is found.
    """

    def loss(inputs: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
        logits = network(input_ids=inputs, use_cache=False).logits
        nats = functional.cross_entropy(
            logits.reshape(-1, logits.size(-1)).float(),
            labels.reshape(-1),
            ignore_index=IGNORED_LABEL,
            reduction="none",
        )
        counted = weights.reshape(-1) * (labels.reshape(-1) != IGNORED_LABEL)
        return (nats * counted).sum() / counted.sum()

    has_compiler = any(shutil.which(name) for name in ("g++", "clang++", "c++"))
    return torch.compile(loss, dynamic=False) if compiled and has_compiler else loss
