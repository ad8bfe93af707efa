"""Parsers for the text of settings. Each raises ValueError with the rule that the text breaks ("must be …")."""

from __future__ import annotations

import ipaddress
import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

_UNITS = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
    "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40,
}  # fmt: skip
"""Bytes per unit. A bare letter is binary, as in systemd, container tools and JVM flags."""
_MAX_SIZE = 1 << 62

RuntimeName = Literal["auto", "native", "openvino"]
"""What computes a model; "auto": what its format needs."""
Precision = Literal["fast", "exact"]
WeightForm = Literal["auto", "exact", "int8", "int4"]
"""How floating-point weights are held. These three are declared here for settings, runtimes and clients alike."""


def string(raw: str) -> str:
    """Return the text without surrounding white space. Raises ValueError if nothing is left."""
    if not raw.strip():
        raise ValueError("must not be empty")
    return raw.strip()


def api_key(raw: str) -> str:
    """Return an API key: visible ASCII, because it is sent in an HTTP header. Raises ValueError."""
    raw = raw.strip()
    if not raw or not raw.isascii() or not raw.isprintable() or " " in raw:
        raise ValueError("must be one or more visible ASCII characters without spaces")
    return raw


def key_name(raw: str) -> str:
    """Return the name of an API key: one word, since it is a value in logs and metrics. Raises ValueError."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", raw.strip()):
        raise ValueError("must have letters, digits and any of . _ @ -, at most 64, and no spaces")
    return raw.strip()


def host_name(raw: str) -> str:
    """Return the host of a URL in lower case, without port. Raises ValueError."""
    name = raw.strip().lower().rstrip(".")
    if not re.fullmatch(r"[a-z0-9_.-]+|\[[0-9a-f:.]+\]", name):
        raise ValueError("must be a host name or address without scheme and port, such as models.example.com")
    return name


def origin(raw: str) -> str:
    """Return the origin of web pages, as browsers send it; `null` and `*` as they are. Raises ValueError."""
    text = raw.strip().lower().rstrip("/")
    if text not in ("null", "*") and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@,]+", text):
        raise ValueError("must be an origin such as https://example.com, null, or *")
    return text


def network(raw: str) -> str:
    """Return the network of an address or of ADDRESS/BITS, an IPv4 network as itself. Raises ValueError."""
    try:
        parsed = ipaddress.ip_network(raw.strip())
    except ValueError:
        raise ValueError("must be an address or a network, such as 192.0.2.1 or 10.0.0.0/8") from None
    mapped = parsed.network_address.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Network) else None
    return str(parsed) if mapped is None or parsed.prefixlen < 96 else f"{mapped}/{parsed.prefixlen - 96}"


def alias(raw: str) -> tuple[str, str]:
    """Return NAME=MODEL as a pair. Raises ValueError."""
    return _named(raw, "NAME=MODEL")


def lora(raw: str) -> tuple[str, str]:
    """Return NAME=PATH[@BASE] as a name and the rest. Raises ValueError."""
    return _named(raw, "NAME=PATH or NAME=PATH@BASE")


def tokenizer(raw: str) -> tuple[str, str]:
    """Return NAME=MODEL as a pair. Raises ValueError."""
    return _named(raw, "NAME=MODEL")


def _named(raw: str, form: str) -> tuple[str, str]:
    """Return a model's name and what follows it. Raises ValueError, also for a name that is not UTF-8 or would be
    invisible in answers, logs and metrics."""
    left, separator, right = (part.strip() for part in raw.partition("="))
    if not (left and separator and right):
        raise ValueError(f"must have the form {form}")
    if not left.isprintable():
        raise ValueError("must have a NAME of printable characters")
    return left, right


def draft(raw: str) -> tuple[str, str]:
    """Return [MODEL=]NAME_OR_PATH as a model, "" for the first one, and the one that drafts for it. Raises
    ValueError."""
    name, separator, model = (part.strip() for part in raw.partition("="))
    name, model = (name, model) if separator else ("", name)
    if not model or (separator and not name):
        raise ValueError("must be the name or path of a model, or MODEL= and one of these")
    return name, model


ENGINES = ("onward", "auto", "llama.cpp", "vllm", "sglang")
"""What can compute a model that this server loads or starts a program for."""
PROGRAMS = ENGINES[2:]


def engine(raw: str) -> tuple[str, str]:
    """Return [NAME=]ENGINE as a model, "" for all, and one of ENGINES. Raises ValueError."""
    name, _, kind = (part.strip() for part in raw.rpartition("="))
    if kind not in ENGINES:
        raise ValueError(f"must be one of {', '.join(ENGINES)}, or MODEL= and one of these")
    return name, kind


def engine_path(raw: str) -> tuple[str, Path]:
    """Return PROGRAM=PATH as one of PROGRAMS and a path. Raises ValueError."""
    kind, _, place = (part.strip() for part in raw.partition("="))
    if kind not in PROGRAMS or not place:
        raise ValueError(f"must have the form PROGRAM=PATH, with one of {', '.join(PROGRAMS)}")
    return kind, path(place)


def engine_argument(raw: str) -> tuple[str, str]:
    """Return [PROGRAM=]ARGUMENT as one of PROGRAMS, "" for all, and the argument. Raises ValueError."""
    kind, separator, argument = raw.partition("=")
    kind, argument = (kind, argument) if separator and kind in PROGRAMS else ("", raw)
    if not argument or "\0" in argument:
        raise ValueError("must be an argument of the program, such as --dtype=float16")
    return kind, argument


def path(raw: str) -> Path:
    """Return a path with `~` expanded. Raises ValueError if empty, or if the home folder is unknown."""
    try:
        return Path(string(raw)).expanduser()
    except RuntimeError:
        raise ValueError("refers to a home folder that does not exist") from None


def boolean(raw: str) -> bool:
    """Parse true/false, yes/no, on/off or 1/0. Raises ValueError."""
    match raw.strip().lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise ValueError("must be true or false")


def database_url(raw: str) -> str:
    """Return the URL of a database: SQLite's or PostgreSQL's. Raises ValueError, which does not show it."""
    text = raw.strip()
    if re.fullmatch(r"sqlite:///[^?#]+", text) or re.fullmatch(r"postgres(ql)?(\+psycopg)?://\S+", text):
        return re.sub(r"^postgres(ql)?(\+psycopg)?://", "postgresql://", text)
    raise ValueError("must be sqlite:///PATH or postgresql://USER:PASSWORD@HOST/NAME")


def price(raw: str) -> tuple[str, int, int, int]:
    """Parse MODEL=PROMPT/COMPLETION[/CACHED]: amounts per million tokens, returned in micro-units. Cached prompt tokens
    cost as much as others if nothing else is said. Raises ValueError."""
    model, separator, amounts = raw.rpartition("=")
    try:
        parts = [micro_units(each) for each in amounts.split("/")]
    except ValueError:
        parts = []
    if not (separator and model.strip() and len(parts) in (2, 3)):
        raise ValueError("must have the form MODEL=PROMPT/COMPLETION or MODEL=PROMPT/COMPLETION/CACHED")
    return model.strip(), parts[0], parts[1], parts[2] if len(parts) == 3 else parts[0]


def micro_units(raw: str) -> int:
    """Parse an amount of money with at most six decimals, as integer micro-units. Raises ValueError."""
    match = re.fullmatch(r"(\d{1,9})(?:\.(\d{1,6}))?", raw.strip())
    if match is None:
        raise ValueError("must be an amount such as 20 or 0.15, with at most six decimals")
    return int(match[1]) * 1_000_000 + int((match[2] or "").ljust(6, "0"))


def seconds(raw: str) -> float:
    """Parse a duration in seconds, finite and not negative; a trailing `s` is allowed. Raises ValueError."""
    try:
        value = float(raw.strip().removesuffix("s"))
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError("must be a number of seconds, 0 or more")
    return value


def ratio(raw: str) -> float:
    """Parse a share, from 0 to 1. Raises ValueError."""
    try:
        value = float(raw.strip())
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise ValueError("must be a number from 0 to 1")
    return value


def http_url(raw: str) -> str:
    """Return an http or https URL without a password. Raises ValueError, which does not show it."""
    text = raw.strip()
    if re.fullmatch(r"https?://[^\s@?#/]+(/[^\s@?#]*)?", text) is None or not _has_port(text):
        raise ValueError("must be a URL such as http://127.0.0.1:4318, without a user or password")
    return text


def _has_port(url: str) -> bool:
    """Return whether the port of a URL, if it states one, is a port."""
    try:
        return urlsplit(url).port != 0
    except ValueError:
        return False


def request_log(raw: str) -> str:
    """Parse where requests are logged: `database`, or the path of a folder. Raises ValueError."""
    return raw.strip() if raw.strip() == "database" else str(path(raw))


def period(raw: str) -> int:
    """Parse a period such as 90d, 12h or 4w as seconds. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d{1,6})\s*([hdw])\s*", raw)
    if match is None or not int(match[1]):
        raise ValueError("must be a number of hours, days or weeks, such as 12h, 90d or 52w")
    return int(match[1]) * {"h": 3600, "d": 86_400, "w": 604_800}[match[2]]


def size(raw: str) -> int:
    """Parse a size in bytes, such as 16MB, 2GiB or 4096. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-zA-Z]*)\s*", raw)
    unit = _UNITS.get(match[2].lower() or "b") if match else None
    if match is None or unit is None or not 1 <= (num_bytes := float(match[1]) * unit) < _MAX_SIZE:
        raise ValueError("must be a size such as 4096, 16MB or 2GiB")
    return int(num_bytes)


def format_size(num_bytes: int) -> str:
    """Return the shortest spelling that `size` parses to exactly `num_bytes`."""
    for unit in ("GiB", "GB", "MiB", "MB", "KiB", "KB"):
        if num_bytes % _UNITS[unit.lower()] == 0:
            return f"{num_bytes // _UNITS[unit.lower()]}{unit}"
    return str(num_bytes)


def size_or_auto(raw: str) -> int | None:
    """Parse a size in bytes; None for `auto`. Raises ValueError."""
    if raw.strip().lower() == "auto":
        return None
    try:
        return size(raw)
    except ValueError as problem:
        raise ValueError(f"{problem}, or auto") from None


@dataclass(frozen=True, slots=True)
class ContentFilterSetting:
    """One [[content_filter]]: either RE2 patterns, or the entry point of a callable that finds flagged text."""

    name: str
    patterns: tuple[str, ...] = ()
    entry_point: str | None = None
    action: Literal["stop", "omit"] = "stop"

    def __str__(self) -> str:
        """The JSON object that `content_filter` parses."""
        rule = {"patterns": list(self.patterns)} if self.patterns else {"entry_point": self.entry_point}
        return json.dumps({"name": self.name, **rule, "action": self.action}, ensure_ascii=False)


def content_filter(raw: str) -> ContentFilterSetting:
    """Parse a content filter from a JSON object. Raises ValueError."""
    try:
        table = json.loads(raw)
    except json.JSONDecodeError:
        table = None
    if not isinstance(table, dict):
        raise ValueError('must be a JSON object such as {"name": "secrets", "patterns": ["sk-[a-z]{8}"]}')
    if unknown := table.keys() - {"name", "patterns", "entry_point", "action"}:
        raise ValueError(f"unknown key {min(unknown)!r}; the keys are name, patterns, entry_point and action")
    name, patterns, entry_point = table.get("name"), table.get("patterns", []), table.get("entry_point")
    action = table.get("action", "stop")
    if not isinstance(name, str) or not name:
        raise ValueError("must have a name")
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise ValueError("patterns must be an array of strings")
    if not isinstance(entry_point, (str, type(None))) or (entry_point is None) is (not patterns):
        raise ValueError("must have either patterns or an entry_point")
    if action not in ("stop", "omit"):
        raise ValueError("action must be stop or omit")
    return ContentFilterSetting(name, tuple(patterns), entry_point, action)


def integer(minimum: int, maximum: int | None = None) -> Callable[[str], int]:
    """Return a parser of integers from `minimum` to `maximum` (inclusive; None: no limit), which raises ValueError."""
    allowed = f"of at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"

    def parse(raw: str) -> int:
        try:
            value = int(raw.strip())
        except ValueError:
            value = minimum - 1
        if value < minimum or (maximum is not None and value > maximum):
            raise ValueError(f"must be an integer {allowed}")
        return value

    return parse


class choice:
    """A parser of one word from `choices`, in any case."""

    def __init__(self, *choices: str) -> None:
        self.choices = choices

    def __call__(self, raw: str) -> str:
        """Return the choice in lower case. Raises ValueError."""
        if raw.strip().lower() not in self.choices:
            raise ValueError(f"must be one of {', '.join(self.choices)}")
        return raw.strip().lower()
