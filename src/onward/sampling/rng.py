"""The random numbers of a draw: a pure function of (seed, choice, position, attempt), never of time or load.

A chain of the SplitMix64 finaliser (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
(seed, choice) picks a starting point S; the states of successive positions are the SplitMix64 sequence that begins
at S, and the attempts of one draw are the sequence that begins at that position's state. `kernels.uniform` is the
same function, compiled.
"""

from __future__ import annotations

GOLDEN = 0x9E3779B97F4A7C15
"""SplitMix64's increment, 2**64 divided by the golden ratio, odd."""
_WORD = (1 << 64) - 1


def mix(word: int) -> int:
    """SplitMix64's finaliser, a bijection of 64-bit words in which every input bit reaches every output bit."""
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & _WORD
    return word ^ (word >> 31)


def uniform(seed: int, choice: int, position: int, attempt: int) -> float:
    """A number in [0, 1) with 53 random bits. `seed` is 0 … 2**64 - 1, the others count from 0."""
    state = mix((seed + GOLDEN) & _WORD)
    for counter in (choice, position, attempt):
        state = mix((state + GOLDEN * (counter + 1)) & _WORD)
    return (state >> 11) * 2.0**-53
