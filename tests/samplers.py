"""The samplers as tests know them: ranges and defaults from behaviour §10, and what each keeps, as plain loops over
sorted lists after the papers and other servers. Copied by hand, not imported from `sampling.filters`, so that errors
there are found. A new sampler is an entry here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

Plain = dict[int, float]
"""Token → probability."""


def by_probability(plain: Plain) -> list[int]:
    return sorted(plain, key=lambda token: (-plain[token], token))


def entropy(plain: Plain) -> float:
    return -sum(p * math.log(p) for p in plain.values())


def plain_top_n_sigma(plain: Plain, n: float) -> set[int]:
    logits = {token: math.log(p) for token, p in plain.items()}
    mean = sum(logits.values()) / len(logits)
    sigma = math.sqrt(sum((each - mean) ** 2 for each in logits.values()) / len(logits))
    return {token for token, each in logits.items() if each >= max(logits.values()) - n * sigma}


def plain_typical(plain: Plain, mass: float) -> set[int]:
    average = entropy(plain)
    kept: set[int] = set()
    total = 0.0
    for token in sorted(plain, key=lambda token: (abs(-math.log(plain[token]) - average), token)):
        kept.add(token)
        total += plain[token]
        if total > mass:
            break
    return kept


def plain_tfs(plain: Plain, z: float) -> set[int]:
    order = by_probability(plain)
    sorted_p = [plain[token] for token in order]
    first = [sorted_p[i] - sorted_p[i + 1] for i in range(len(order) - 1)]
    second = [abs(first[i] - first[i + 1]) for i in range(len(first) - 1)]
    running = 0.0
    for i, bend in enumerate(second):
        running += bend / sum(second)
        if running > z and i >= 1:
            return set(order[:i])
    return set(order)


def plain_top_a(plain: Plain, a: float) -> set[int]:
    return {token for token, p in plain.items() if p >= a * max(plain.values()) ** 2}


def plain_epsilon(plain: Plain, epsilon: float) -> set[int]:
    return {token for token, p in plain.items() if p >= epsilon or p == max(plain.values())}


def plain_eta(plain: Plain, eta: float) -> set[int]:
    return plain_epsilon(plain, min(eta, math.sqrt(eta) * math.exp(-entropy(plain))))


def plain_xtc(plain: Plain, threshold: float) -> set[int]:
    above = [token for token in by_probability(plain) if plain[token] >= threshold]
    return set(plain) - set(above[:-1])


@dataclass(frozen=True)
class Sampler:
    """`parameters`: name → (minimum, maximum, default) in a request. `keeps` returns the tokens that are kept, by the
    value of `varied`, of which `values` are examples; `with_others` are its other parameters meanwhile. `best_only`:
    fields of a request with which only a far more likely token remains. `bits`: the digest of the samples of test_bits,
    which changes only together with SAMPLING_REVISION."""

    parameters: dict[str, tuple[float, float, float]]
    keeps: Callable[[Plain, float], set[int]]
    varied: str
    values: tuple[float, float, float]
    bits: str
    best_only: dict[str, Any] = field(default_factory=dict)
    with_others: tuple[tuple[str, float], ...] = ()

    def filters(self, value: float) -> tuple[tuple[str, float], ...]:
        """Return SamplingParams.filters."""
        return (*self.with_others, (self.varied, value))


SAMPLERS: dict[str, Sampler] = {
    "top_n_sigma": Sampler(
        {"top_n_sigma": (-1, 100, -1)},
        plain_top_n_sigma,
        "top_n_sigma",
        (0.5, 1.0, 2.5),
        "303cc04376d71869835fbc8bc955b92bc07129894623d80781ca53e967c18c67",
        {"top_n_sigma": 1},
    ),
    "typical_p": Sampler(
        {"typical_p": (0, 1, 1)},
        plain_typical,
        "typical_p",
        (0.05, 0.5, 0.95),
        "9b41bc5bcade93209604de3e4ccfebb36910d6a6f085e266d9f86e546ae9a09d",
        {"typical_p": 0.5},
    ),
    "tfs": Sampler(
        {"tfs": (0, 1, 1)},
        plain_tfs,
        "tfs",
        (0.3, 0.9, 0.99),
        "da61dfa06a9973021a0c67a506106b7ebe6ed26de233ce797f736d5580065583",
        {"tfs": 0},
    ),
    "top_a": Sampler(
        {"top_a": (0, 1, 0)},
        plain_top_a,
        "top_a",
        (0.05, 0.5, 1.0),
        "1ee8ef01ce0c7434c255e1a12682a36b2861f6c97bd908417855a1a1e197f2ff",
        {"top_a": 1},
    ),
    "epsilon_cutoff": Sampler(
        {"epsilon_cutoff": (0, 1000, 0)},
        plain_epsilon,
        "epsilon_cutoff",
        (0.0003, 0.01, 0.1),
        "56ef633548980fa3a559d0e5cbb68083cdeb9d29c6285f5beeaa3dab9301c997",
        {"epsilon_cutoff": 1000},
    ),
    "eta_cutoff": Sampler(
        {"eta_cutoff": (0, 10000, 0)},
        plain_eta,
        "eta_cutoff",
        (0.0003, 0.01, 0.1),
        "68938734a6e0374e839097a17ff97643dc201b0d6c99236f3239d1965444acf1",
        {"eta_cutoff": 10000},
    ),
    "xtc": Sampler(
        {"xtc_probability": (0, 1, 0), "xtc_threshold": (0, 1, 0.1)},
        plain_xtc,
        "xtc_threshold",
        (0.01, 0.05, 0.3),
        "6452f71a93c26de49aec96d6900ba961984a07b92a3c7c1923a7205915d76195",
        with_others=(("xtc_probability", 1.0),),
    ),
}
PARAMETERS = {name: each for sampler in SAMPLERS.values() for name, each in sampler.parameters.items()}
