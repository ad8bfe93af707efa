"""`make chaos`: faults in an engine under many streams, then servers that are killed. Linux only."""

from __future__ import annotations

import argparse
import random
import sys
import time

from tests.chaos.disturb import disturb
from tests.chaos.parents import kill_servers


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--faults", type=int, default=200, help="faults of the engine (200)")
    parser.add_argument("--clients", type=int, default=32, help="clients that send one request after the other (32)")
    parser.add_argument("--servers", type=int, default=20, help="servers that are killed (20)")
    parser.add_argument("--seed", type=int, help="repeats the faults and requests of a run that printed it")
    options = parser.parse_args()
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    say(f"seed {seed}")
    started = time.monotonic()
    kill_servers(options.servers, seed, say)
    say(f"{options.servers} servers were killed: no process was left, and the port was free at once")
    outcome = disturb(options.faults, options.clients, seed, say) if options.faults else None
    if outcome is not None:
        say(outcome.summary())
    say(f"{time.monotonic() - started:.0f} s")
    sys.exit(bool(outcome and outcome.problems))


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
