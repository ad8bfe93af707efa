"""Numbers of JSON schemas: the library computes with doubles and with 32 bits, so what it would change is refused, or
written as an expression that is exact."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import TypeGuard

from onward.constraints.errors import GrammarError

MAX_EXACT_INTEGER = 2**53
"""Integers up to here are doubles, and so are their neighbours."""
MAX_DIVISOR = 429_496_729
"""Maximum of `multipleOf`, as an integer without its decimal point: ten times it has to fit into 32 bits."""
MAX_COUNT = 2**53
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")

Number = int | float


def is_number(value: object) -> TypeGuard[Number]:
    """Whether a value of JSON is a number."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def check_literal(keyword: str, value: Number) -> None:
    """Raise GrammarError for a number of `const` or `enum` that would be generated as another one."""
    if not is_exact_literal(value):
        raise _inexact(keyword, value)


def is_exact_literal(value: Number) -> bool:
    """Whether the library writes a number of `const` or `enum` as it is. It writes the shortest digits of the nearest
    double, and clamps what JSON has as an integer to 64 bits."""
    if not is_finite(value):
        return False
    if isinstance(value, int) and not -(2**63) < value < 2**64:
        return False  # also what crashes it: -(2**63)
    return Decimal(value) == _shortest(value) if isinstance(value, int) else True


def check_bound(keyword: str, value: Number) -> None:
    """Raise GrammarError for a bound that the library would change."""
    if not is_exact_bound(value):
        raise _inexact(keyword, value)


def is_exact_bound(value: Number) -> bool:
    """Whether the library keeps a bound. It adds one to some, which doubles beyond MAX_EXACT_INTEGER do not show."""
    return is_finite(value) and abs(value) <= MAX_EXACT_INTEGER


def check_multiple(value: Number) -> None:
    """Raise GrammarError for a divisor that is not positive, or with which the library would compute wrongly."""
    if not value > 0:
        raise GrammarError(f"multipleOf: {_shown(value)} is not greater than 0")
    divisor = _library_divisor(value)
    if divisor is None or divisor[0] > MAX_DIVISOR:
        raise GrammarError(
            f"multipleOf: {_shown(value)} cannot be computed exactly; use an integer up to {MAX_DIVISOR}, or a decimal "
            "fraction with fewer digits"
        )


def multiples_within(divisor: Number, bounds: Mapping[str, Number]) -> dict[str, Number]:
    """Return the first and the last multiple within bounds as `minimum` and `maximum`: the library misses multiples
    where a bound has more digits than the divisor. Without any, the first is beyond the last. Raises GrammarError where
    doubles are others, or where the library, which multiplies them, would take others for the ends."""
    step = _fraction(divisor)
    found: dict[str, Number] = {}
    ends: dict[str, int] = {}
    for keyword, value in bounds.items():
        place = _fraction(value) / step
        match keyword:
            case "minimum" | "exclusiveMinimum":
                end = math.ceil(place) if keyword == "minimum" else math.floor(place) + 1
                ends["minimum"] = max(end, ends.get("minimum", end))
            case _:
                end = math.floor(place) if keyword == "maximum" else math.ceil(place) - 1
                ends["maximum"] = min(end, ends.get("maximum", end))
    nearest = {"minimum": math.ceil, "maximum": math.floor}
    has_multiples = len(ends) == 2 and ends["minimum"] <= ends["maximum"]
    for keyword, end in ends.items():
        exact = end * step
        number: Number = int(exact) if exact.denominator == 1 else float(exact)
        is_kept = is_exact_bound(number) and _fraction(number) == exact
        if is_kept and has_multiples:
            taken = nearest[keyword](number / divisor)
            is_kept = taken == end and _fraction(taken * float(divisor)) == exact
        if not is_kept:
            shown = shown_bounds(bounds)
            raise GrammarError(
                f"multipleOf: {_shown(divisor)} cannot be kept exactly within {shown}; leave a bound out, or list the "
                "numbers in an 'enum'"
            )
        found[keyword] = number
    return found


def are_crossed(ends: Mapping[str, Number]) -> bool:
    """Whether no number is within what `multiples_within` returned."""
    return len(ends) == 2 and ends["minimum"] > ends["maximum"]


def shown_bounds(bounds: Mapping[str, Number]) -> str:
    """Return bounds in words, for messages."""
    return " and ".join(f"{keyword}: {_shown(value)}" for keyword, value in bounds.items())


def admitted_end(keyword: str, value: Number, others: Sequence[Number]) -> bool:
    """Whether the library would admit an integer that an exclusive bound excludes: it does where the opposite bound,
    one of `others`, is less than 1 from it."""
    if not isinstance(whole(value), int) or not is_exact_bound(value):
        return False
    if keyword == "exclusiveMinimum":
        return value >= 0 and any(value < other < value + 1 for other in others)
    return value <= 0 and any(value - 1 < other < value for other in others)


def just_inside(keyword: str, value: Number) -> float:
    """Return an exclusive bound moved by a fraction, as little as doubles of a few digits allow, which the library
    keeps."""
    return value + (1 if keyword == "exclusiveMinimum" else -1) * max(1.0, abs(value)) * 2.0**-50


def _fraction(value: Number) -> Fraction:
    """Return the number that a number's shortest digits are."""
    return Fraction(Decimal(value) if isinstance(value, int) else Decimal(repr(value)))


def check_count(keyword: str, value: object) -> None:
    """Raise GrammarError for a count that the library does not read."""
    if is_number(value) and value > MAX_COUNT:
        raise GrammarError(f"{keyword}: {_shown(value)} is more than any text has; use at most {MAX_COUNT}")


def check_common_multiple(values: list[Number]) -> None:
    """Raise GrammarError where the divisors of a schema, which may have to hold together, exceed MAX_DIVISOR
    together."""
    divisors = [divisor for value in set(values) if (divisor := _library_divisor(value)) is not None]
    scale = max((exponent for _, exponent in divisors), default=0)
    common = math.lcm(*(coefficient * 10 ** (scale - exponent) for coefficient, exponent in divisors))
    products = [coefficient * 10 ** (scale - exponent) for coefficient, exponent in divisors]
    if len(divisors) > 1 and max(common, math.prod(sorted(products)[-2:])) > MAX_DIVISOR * 10:
        shown = ", ".join(map(_shown, sorted(set(values))))
        raise GrammarError(f"multipleOf: {shown} cannot be computed together; remove one of them")


def integer_range(low: int | None, high: int | None) -> str | None:
    """Return a regular expression of the integers from `low` to `high`, both included, as JSON writes them; None if
    there is none. None as a bound: unbounded."""
    parts = []
    if low is None or low < 0:
        negative = _naturals(1 if high is None or high >= 0 else -high, None if low is None else -low)
        parts += [f"-{part}" for part in negative]
    if high is None or high >= 0:
        parts += _naturals(max(low or 0, 0), high)
    return "|".join(parts) or None


def whole(value: Number) -> Number:
    """Return a float without a fraction as the integer that it is."""
    return int(value) if isinstance(value, float) and is_finite(value) and value.is_integer() else value


def _naturals(low: int, high: int | None) -> list[str]:
    """Return expressions of the integers from `low`, which is not negative, to `high`."""
    if high is None:
        digits = len(str(low))
        longer = f"[1-9][0-9]{{{digits},}}"
        return [*_naturals(low, 10**digits - 1), longer]
    parts: list[str] = []
    while low <= high:  # for each number of digits
        end = min(high, 10 ** len(str(low)) - 1)
        parts += _same_length(str(low), str(end))
        low = end + 1
    return parts


def _same_length(low: str, high: str) -> list[str]:
    """Return expressions of the digit strings between two of the same length."""
    if not low:
        return [""]
    if low[0] == high[0]:
        return [low[0] + part for part in _same_length(low[1:], high[1:])]
    rest = len(low) - 1
    parts, first, last = [], int(low[0]), int(high[0])
    if low[1:] != "0" * rest:
        parts += [low[0] + part for part in _same_length(low[1:], "9" * rest)]
        first += 1
    tail = []
    if high[1:] != "9" * rest:
        tail = [high[0] + part for part in _same_length("0" * rest, high[1:])]
        last -= 1
    if first <= last:
        digit = str(first) if first == last else f"[{first}-{last}]"
        parts.append(digit + ("" if not rest else "[0-9]" if rest == 1 else f"[0-9]{{{rest}}}"))
    return parts + tail


def _library_divisor(value: Number) -> tuple[int, int] | None:
    """Return a divisor as the library reads it, coefficient * 10**-exponent; None if that is another number."""
    if not is_finite(value):
        return None
    scaled, exponent = float(value), 0
    while not scaled.is_integer():
        scaled, exponent = scaled * 10.0, exponent + 1
    coefficient = int(scaled)
    while exponent and coefficient % 10 == 0:
        coefficient, exponent = coefficient // 10, exponent - 1
    exact = Decimal(value) if isinstance(value, int) else Decimal(repr(value))
    return (coefficient, exponent) if Decimal(coefficient).scaleb(-exponent) == exact else None


def _shortest(value: int) -> Decimal:
    """Return the number that the digits of the nearest double are."""
    return Decimal(repr(float(value)))


def is_finite(value: Number) -> bool:
    """Whether a number is within the range of doubles."""
    return value.bit_length() < 1024 if isinstance(value, int) else math.isfinite(value)


def _shown(value: Number) -> str:
    if not is_finite(value):
        return "a number beyond the range of doubles"
    return str(value) if abs(value) < 10**40 else f"a number of {len(str(int(value)))} digits"


def _inexact(keyword: str, value: Number) -> GrammarError:
    return GrammarError(
        f"{keyword}: {_shown(value)} cannot be kept exactly; numbers up to {MAX_EXACT_INTEGER} can, and "
        "beyond them a schema that is one integer, with bounds, a const or an enum"
    )
