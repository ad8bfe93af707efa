"""The table of filters: temperature, and the samplers that leave tokens out, in the order in which they act.

A filter's name, when it acts, what it keeps (as a kernel, and in numpy) and its place are declared here alone: plans,
the features of engines, requests to upstreams and the names that `samplers` may list are made from the table. Only
annotations import what computes, so that whoever needs the names pays for neither numpy nor a compiler.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from onward.sampling.rng import XTC_ATTEMPT

if TYPE_CHECKING:
    from onward.kernels.values import Value
    from onward.sampling.candidates import Candidates
    from onward.sampling.interval import Interval


@dataclass(frozen=True, slots=True)
class FilterParameter:
    """A number that a request may set: its name there, and the value with which it does nothing.

    `unit`: what the request's number is multiplied with. Not `switches`: it only says how the filter acts, and whether
    it does depends on another parameter.
    """

    name: str
    neutral: float
    unit: float = 1.0
    switches: bool = True

    def acts(self, value: float) -> bool:
        """Return whether a value turns the filter on. A negative one does not, as in other servers."""
        return self.switches and value >= 0 and value != self.neutral


@dataclass(frozen=True, slots=True)
class Filter:
    """`kernel` writes code that narrows the Interval, `reference` returns the Candidates that are left. Both take the
    values of the parameters as further arguments, and are called only where one of these acts. `alias`: another name
    in lists of samplers."""

    name: str
    parameters: tuple[FilterParameter, ...]
    kernel: Callable[..., None]
    reference: Callable[..., Candidates]
    alias: str | None = None

    def acts(self, value: Callable[[str], float]) -> bool:
        """Return whether the filter acts where its parameters have these values."""
        return any(each.acts(value(each.name)) for each in self.parameters)


def _temperature(left: Interval, chosen: Value, spread: Value, exponent: Value) -> None:
    """With a range, by the entropy of what is left, as a share of the largest possible one: the rule of llama.cpp and
    KoboldCpp."""
    f, temperature = left.f, left.variable(chosen)
    with f.when((spread > 0.0) & (left.count.value >= 2)):
        entropy = left.entropy(left.mass())
        share = f.min(f.max(entropy / left.log(left.count.value.to_f64()), 0.0), 1.0)
        lowest = f.max(chosen - spread, 0.0)
        power = left.exp(exponent * left.log(share))
        temperature.value = lowest + (chosen + spread - lowest) * power
    left.set_temperature(temperature.value)


def _temperature_reference(left: Candidates, chosen: float, spread: float, exponent: float) -> Candidates:
    if spread <= 0 or left.ids.size < 2:
        return left.at_temperature(chosen)
    share = min(max(left.entropy / math.log(left.ids.size), 0.0), 1.0)
    lowest = max(0.0, chosen - spread)
    return left.at_temperature(lowest + (chosen + spread - lowest) * share**exponent)


def _top_n_sigma(left: Interval, n: Value) -> None:
    """Keep the logits within n standard deviations of the highest."""
    deviation = left.deviation()
    left.keep_logits_above(left.highest().to_f64() - n * deviation)


def _top_n_sigma_reference(left: Candidates, n: float) -> Candidates:
    return left.kept(left.logits >= left.logits.max() - n * left.logits.std())


def _min_p(left: Interval, share: Value) -> None:
    """Keep the tokens that are at least this fraction as likely as the most likely one."""
    left.keep_heavier(share)


def _min_p_reference(left: Candidates, share: float) -> Candidates:
    return left.at_least(share * left.highest_probability)


def _top_k(left: Interval, count: Value) -> None:
    left.keep_first(count)


def _top_k_reference(left: Candidates, count: int) -> Candidates:
    return left.kept(left.ranks < count)


def _top_p(left: Interval, share: Value) -> None:
    """Keep the most likely tokens until their mass is the share."""
    left.keep_first(left.num_below(share * left.mass()) + 1)


def _top_p_reference(left: Candidates, share: float) -> Candidates:
    p = left.probabilities
    return left.kept(p.cumsum() - p < share)


def _typical_p(left: Interval, share: Value) -> None:
    """Keep the tokens whose surprise is closest to the entropy, until their mass exceeds the share (Meister et al.:
    "Locally typical sampling", 2022)."""
    mass = left.mass()
    left.keep_nearest(left.entropy(mass) - left.log(mass), share * mass)


def _typical_p_reference(left: Candidates, share: float) -> Candidates:
    return left.nearest(left.entropy, share)


def _tfs(left: Interval, share: Value) -> None:
    """Tail-free sampling: cut where the second differences of the probabilities, normalised, sum to more than the
    share."""
    with left.f.when(left.count.value > 2):
        left.keep_until_bends(share)


def _tfs_reference(left: Candidates, share: float) -> Candidates:
    p = left.probabilities
    if p.size <= 2:
        return left
    bends = abs((p[:-2] - p[1:-1]) - (p[1:-1] - p[2:]))
    total = float(bends.sum())
    sums = bends.cumsum() / total if total > 1e-6 else (left.ranks[:-2] + 1) / bends.size
    beyond = [place for place, sum_so_far in enumerate(sums) if place >= 1 and sum_so_far > share]
    return left.kept(left.ranks < (beyond[0] if beyond else p.size))


def _top_a(left: Interval, a: Value) -> None:
    """Keep the tokens that are at least as likely as a times the square of the highest probability."""
    left.keep_heavier(a / left.mass())


def _top_a_reference(left: Candidates, a: float) -> Candidates:
    return left.at_least(a * left.highest_probability**2)


def _epsilon_cutoff(left: Interval, epsilon: Value) -> None:
    left.keep_heavier(epsilon * left.mass())


def _epsilon_cutoff_reference(left: Candidates, epsilon: float) -> Candidates:
    return left.at_least(epsilon)


def _eta_cutoff(left: Interval, eta: Value) -> None:
    """Keep the tokens above a threshold that is lower where the entropy is high (Hewitt et al.: "Truncation sampling as
    language model desmoothing", 2022)."""
    f, mass = left.f, left.mass()
    by_entropy = f.sqrt(eta) * left.exp(-left.entropy(mass))
    left.keep_heavier(f.min(eta, by_entropy) * mass)


def _eta_cutoff_reference(left: Candidates, eta: float) -> Candidates:
    return left.at_least(min(eta, math.sqrt(eta) * math.exp(-left.entropy)))


def _xtc(left: Interval, probability: Value, threshold: Value) -> None:
    """Exclude top choices: with the probability, keep of the tokens that are as likely as the threshold only the
    least likely one, and all that are less likely."""
    f = left.f
    with f.when(left.uniform(XTC_ATTEMPT) < probability):
        above = f.max(left.num_heavier(threshold * left.mass()) - 1, 0)
        left.keep_from(above, left.count.value - above)


def _xtc_reference(left: Candidates, probability: float, threshold: float) -> Candidates:
    if left.chance >= probability:
        return left
    return left.kept(left.ranks >= (left.probabilities >= threshold).sum() - 1)


_CUTOFF_UNIT = 1e-4
"""As in Aphrodite and text-generation-webui."""
_TEMPERATURE = (
    FilterParameter("temperature", 1.0),
    FilterParameter("dynatemp_range", 0.0),
    FilterParameter("dynatemp_exponent", 1.0, switches=False),
)
_XTC = (FilterParameter("xtc_probability", 0.0), FilterParameter("xtc_threshold", 0.1, switches=False))


def _one(name: str, neutral: float, unit: float = 1.0) -> tuple[FilterParameter, ...]:
    return (FilterParameter(name, neutral, unit),)


FILTERS: dict[str, Filter] = {
    each.name: each
    for each in (
        Filter("temperature", _TEMPERATURE, _temperature, _temperature_reference),
        Filter("top_n_sigma", _one("top_n_sigma", 0.0), _top_n_sigma, _top_n_sigma_reference),
        Filter("min_p", _one("min_p", 0.0), _min_p, _min_p_reference),
        Filter("top_k", _one("top_k", 0), _top_k, _top_k_reference),
        Filter("top_p", _one("top_p", 1.0), _top_p, _top_p_reference),
        Filter("typical_p", _one("typical_p", 1.0), _typical_p, _typical_p_reference, alias="typ_p"),
        Filter("tfs", _one("tfs", 1.0), _tfs, _tfs_reference),
        Filter("top_a", _one("top_a", 0.0), _top_a, _top_a_reference),
        Filter("epsilon_cutoff", _one("epsilon_cutoff", 0.0, _CUTOFF_UNIT), _epsilon_cutoff, _epsilon_cutoff_reference),
        Filter("eta_cutoff", _one("eta_cutoff", 0.0, _CUTOFF_UNIT), _eta_cutoff, _eta_cutoff_reference),
        Filter("xtc", _XTC, _xtc, _xtc_reference),
    )
}
"""By name, in the order in which they act unless a request has another one."""
DEFAULT_ORDER = tuple(FILTERS)
ALIASES: dict[str, str] = {each.alias: each.name for each in FILTERS.values() if each.alias}
PARAMETERS: dict[str, FilterParameter] = {one.name: one for each in FILTERS.values() for one in each.parameters}

COMMON = ("temperature", "min_p", "top_k", "top_p")
"""Parameters that every engine has. Where only these act, in this order, `draws` samples without a sort."""
OPTIONAL: dict[str, str] = {
    one.name: each.name
    for each in FILTERS.values()
    for one in each.parameters
    if one.switches and one.name not in COMMON
}
"""The other parameters that turn a filter on, and its name: what an engine may lack."""


_COMMUTING = ({"temperature", "top_k"}, {"min_p", "top_k"})
"""Filters that keep the same tokens whichever acts first: top_k looks at nothing but ranks, min_p at the likeliest
token, which top_k keeps."""


def is_in_usual_order(chain: Sequence[str]) -> bool:
    """Return whether filters that act in this order keep the same tokens as in the default one."""
    places = [DEFAULT_ORDER.index(name) for name in chain]
    pairs = combinations(zip(places, chain, strict=True), 2)
    return all(first < second or {name, other} in _COMMUTING for (first, name), (second, other) in pairs)


def optional_values(value: Callable[[str], float]) -> tuple[tuple[str, float], ...]:
    """Return the parameters other than COMMON that have an effect, with their values in the units of sampling.
    `value` returns that of a request."""
    found: list[tuple[str, float]] = []
    for each in FILTERS.values():
        own = [one for one in each.parameters if one.name not in COMMON]
        if any(one.acts(value(one.name)) for one in own):
            found += ((one.name, value(one.name) * one.unit) for one in own if value(one.name) != one.neutral)
    return tuple(found)
