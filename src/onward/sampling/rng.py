"""The random numbers of sampling: a pure function of (seed, choice, position, attempt), never of time or load.

A chain of the SplitMix64 finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
(seed, choice) selects a starting point S; the states of successive positions are the SplitMix64 sequence that starts
at S, and the attempts at one position are the sequence that starts at that position's state. `draws.uniform` is the
same function, compiled.
"""

from __future__ import annotations

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
"""SplitMix64's increment, 2**64 divided by the golden ratio, odd."""
XTC_ATTEMPT = 1 << 32
"""The attempt number of XTC's random number: no rejected attempt of another sampler reaches it."""
_MASK = (1 << 64) - 1


def mix(word: int) -> int:
    """Return SplitMix64's finaliser of a word of 64 bits: a bijection; every input bit affects every output bit."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _MASK
    return word ^ (word >> 31)


def uniform(seed: int, choice: int, position: int, attempt: int) -> float:
    """Return a number in [0, 1) with 53 random bits. `seed` is in 0 … 2**64 - 1, the others count from 0."""
    state = mix((seed + GOLDEN_GAMMA) & _MASK)
    for counter in (choice, position, attempt):
        state = mix((state + GOLDEN_GAMMA * (counter + 1)) & _MASK)
    return (state >> 11) * 2.0**-53
