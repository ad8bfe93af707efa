"""How routing by prefixes does with 1 to 4,000 replicas: a simulation, without models and without a clock.

`python -m benchmarks.routing`. Requests arrive at random at several faces that share nothing. Each has one of many
prefixes, some of them far more often than others (Zipf), followed by text of its own. Each replica computes some
requests at a time, keeps the blocks of the prompts used last, and computes only blocks that it does not have. Compared
are Onward's router, a consistent hash of the first block, the less loaded of two replicas drawn at random (which knows
every replica's load, of all faces), and round robin. Also: what moves when a replica joins or leaves, and what the
router itself costs. Seeded: the same figures every time, but for times and memory.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
import statistics
import time
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from onward.routing import BLOCK_TOKENS, Ring, Router, prefix_keys

ROWS = 16
"""Requests that a replica computes at a time."""
CACHED_BLOCKS = 2_000
"""Blocks that a replica's cache keeps: 64,000 tokens."""
SHARED_BLOCKS, OWN_BLOCKS = 24, 4
"""Blocks of a prompt that it shares with others of its prefix, and those of its own."""
BLOCK_SECONDS, DECODE_SECONDS = 0.02, 0.5
"""Time to compute one block of a prompt, and an answer."""
PREFIXES_PER_REPLICA = 50
ZIPF_EXPONENT = 1.0
UTILISATION = 0.7
"""Of all rows, if every shared block were cached."""
REQUESTS_PER_REPLICA, FEWEST_REQUESTS = 100, 10_000
"""The second half of them is measured."""
REPORT_SECONDS = 1.0
"""How often faces learn the load of all replicas, where they do."""


class Prompt(NamedTuple):
    keys: tuple[int, ...]


class Replica:
    """Computes ROWS requests at a time, the others in order of arrival."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self.free_at = [0.0] * ROWS
        self.load = 0
        self.busy_seconds = 0.0

    def begin(self, now: float, prompt: Prompt) -> tuple[float, float, int]:
        """Return when a request starts and ends there, and how many of its blocks are cached."""
        num_cached = 0
        for key in prompt.keys:
            if key not in self.blocks:
                break
            num_cached += 1
        for key in prompt.keys:
            self.blocks[key] = None
            self.blocks.move_to_end(key)
        while len(self.blocks) > CACHED_BLOCKS:
            self.blocks.popitem(last=False)
        start = max(now, heapq.heappop(self.free_at))
        seconds = (len(prompt.keys) - num_cached) * BLOCK_SECONDS + DECODE_SECONDS
        self.busy_seconds += seconds
        heapq.heappush(self.free_at, start + seconds)
        self.load += 1
        return start, start + seconds, num_cached


Choose = Callable[[int, Prompt], int]
"""From face and prompt to the index of a replica."""
Ended = Callable[[int, int], None]
"""A request of a face has ended at a replica."""
Report = Callable[[], None]
"""All faces learn the loads of all replicas."""


def nothing(*arguments: int) -> None:
    """A callback for policies that learn nothing."""


def routers_of(num_replicas: int, num_faces: int) -> list[Router]:
    """Return a router for each face."""
    names = [str(index) for index in range(num_replicas)]
    first = Router(names)
    routers = [first]
    for _ in range(num_faces - 1):
        router = Router()
        router._ring = first._ring  # rings are immutable, and take a second to make
        routers.append(router)
    return routers


def onward(replicas: list[Replica], num_faces: int, draw: random.Random) -> tuple[Choose, Ended, Report]:
    """Each face has a router of its own, which knows the load of its own requests, and of others what was reported."""
    routers = routers_of(len(replicas), num_faces)

    def report() -> None:
        for router in routers:
            for index, replica in enumerate(replicas):
                router.reported(str(index), replica.load)

    def choose(face: int, prompt: Prompt) -> int:
        [name] = routers[face].rank(prompt.keys, 1, limit=1)
        routers[face].begin(name, prompt.keys)
        return int(name)

    return choose, lambda face, replica: routers[face].end(str(replica)), report


def alone(replicas: list[Replica], num_faces: int, draw: random.Random) -> tuple[Choose, Ended, Report]:
    """As `onward`, but nothing is reported."""
    choose, ended, _ = onward(replicas, num_faces, draw)
    return choose, ended, nothing


def hash_only(replicas: list[Replica], num_faces: int, draw: random.Random) -> tuple[Choose, Ended, Report]:
    ring = Ring(str(index) for index in range(len(replicas)))
    return lambda face, prompt: int(next(ring.walk(prompt.keys[0]))), nothing, nothing


def two_choices(replicas: list[Replica], num_faces: int, draw: random.Random) -> tuple[Choose, Ended, Report]:
    def choose(face: int, prompt: Prompt) -> int:
        one, other = draw.randrange(len(replicas)), draw.randrange(len(replicas))
        return min(one, other, key=lambda index: replicas[index].load)

    return choose, nothing, nothing


def round_robin(replicas: list[Replica], num_faces: int, draw: random.Random) -> tuple[Choose, Ended, Report]:
    starts = [itertools.count(draw.randrange(len(replicas))) for _ in range(num_faces)]
    return lambda face, prompt: next(starts[face]) % len(replicas), nothing, nothing


POLICIES = {
    "Onward": onward,
    "Onward, no reports": alone,
    "hash of the prefix": hash_only,
    "two choices": two_choices,
    "round robin": round_robin,
}


@dataclass
class Result:
    """`hits`: share of the shared blocks that were cached. `imbalance`: work of the busiest replica, the mean being 1.
    Seconds are those that requests waited for a row."""

    hits: float
    imbalance: float
    wait_p50: float
    wait_p99: float


def prompts(num_prefixes: int, draw: random.Random) -> Iterator[Prompt]:
    """Yield prompts without end. Keys stand for what `prefix_keys` returns."""
    weights = list(itertools.accumulate((index + 1) ** -ZIPF_EXPONENT for index in range(num_prefixes)))
    shared = [tuple(draw.getrandbits(64) for _ in range(SHARED_BLOCKS)) for _ in range(num_prefixes)]
    while True:
        for prefix in draw.choices(shared, cum_weights=weights, k=1000):
            yield Prompt((*prefix, *(draw.getrandbits(64) for _ in range(OWN_BLOCKS))))


def simulate(policy: str, num_replicas: int, num_faces: int, seed: int = 0) -> Result:
    """Serve requests at random times by a policy."""
    draw = random.Random(seed)
    replicas = [Replica() for _ in range(num_replicas)]
    choose, ended, report = POLICIES[policy](replicas, num_faces, random.Random(seed + 1))
    rate = UTILISATION * num_replicas * ROWS / (OWN_BLOCKS * BLOCK_SECONDS + DECODE_SECONDS)
    source = prompts(PREFIXES_PER_REPLICA * num_replicas, draw)
    num_requests = max(FEWEST_REQUESTS, REQUESTS_PER_REPLICA * num_replicas)
    running: list[tuple[float, int, int]] = []
    waits, hits, now, reported = [], [], 0.0, 0.0
    for number in range(num_requests):
        now += draw.expovariate(rate)
        while running and running[0][0] <= now:
            _, face, index = heapq.heappop(running)
            replicas[index].load -= 1
            ended(face, index)
        if now - reported >= REPORT_SECONDS:
            report()
            reported = now
        prompt, face = next(source), draw.randrange(num_faces)
        index = choose(face, prompt)
        if number == num_requests // 2:
            for replica in replicas:
                replica.busy_seconds = 0.0
        start, end, num_cached = replicas[index].begin(now, prompt)
        heapq.heappush(running, (end, face, index))
        if number >= num_requests // 2:
            waits.append(start - now)
            hits.append(num_cached / SHARED_BLOCKS)
    busy = [replica.busy_seconds for replica in replicas]
    cuts = statistics.quantiles(waits, n=100)
    return Result(statistics.fmean(hits), max(busy) / statistics.fmean(busy), cuts[49], cuts[98])


def moved(num_replicas: int) -> tuple[float, float]:
    """Return the shares of 20,000 prefixes that have another home after one replica left, and after one joined."""
    names = [str(index) for index in range(num_replicas)]
    keys = [prefix_keys([index])[0] for index in range(20_000)]
    ring = Ring(names)
    homes = [next(ring.walk(key)) for key in keys]

    def share(other: Ring) -> float:
        return sum(next(other.walk(key)) != home for key, home in zip(keys, homes, strict=True)) / len(keys)

    return share(ring.changed(names[1:] or names)), share(ring.changed([*names, "new"]))


@dataclass
class Cost:
    """What a router takes: memory with all prefixes that it remembers, and times."""

    mebibytes: float
    make_ms: float
    join_ms: float
    decision_us: float


def cost(num_replicas: int) -> Cost:
    """Measure a router."""
    names = [str(index) for index in range(num_replicas)]
    known = list(itertools.islice(prompts(1_000, random.Random(0)), 10_000))

    def decide(router: Router) -> None:
        for prompt in known:
            [name] = router.rank(prompt.keys, 1, limit=1)
            router.begin(name, prompt.keys)
            router.end(name)

    start = time.perf_counter()
    router = Router(names)
    made = time.perf_counter()
    router.set_replicas([*names, "new"])
    joined = time.perf_counter()
    decide(router)
    decided = time.perf_counter()
    tracemalloc.start()
    traced = Router(names)
    decide(traced)
    size = tracemalloc.get_traced_memory()[0] / 2**20
    tracemalloc.stop()
    return Cost(size, (made - start) * 1e3, (joined - made) * 1e3, (decided - joined) / len(known) * 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.routing", description=__doc__)
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 4, 64, 1000, 4000])
    parser.add_argument("--faces", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--policies", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    arguments = parser.parse_args()
    print(
        f"{ROWS} rows a replica, {UTILISATION:.0%} used, {PREFIXES_PER_REPLICA} prefixes a replica of "
        f"{SHARED_BLOCKS * BLOCK_TOKENS} tokens (Zipf {ZIPF_EXPONENT}), a cache of {CACHED_BLOCKS} blocks\n"
    )
    print("| replicas | faces | policy | prefix hits | busiest replica | wait p50 | wait p99 |")
    print("|---|---|---|---|---|---|---|")
    for num_replicas in arguments.replicas:
        for policy in arguments.policies:
            for faces in arguments.faces if policy.startswith("Onward") else arguments.faces[:1]:
                found = simulate(policy, num_replicas, faces)
                print(
                    f"| {num_replicas:,} | {faces} | {policy} | {found.hits:.1%} | {found.imbalance:.2f} | "
                    f"{found.wait_p50:.2f} s | {found.wait_p99:.2f} s |",
                    flush=True,
                )
    print("\n| replicas | moved by a leave | by a join | a decision | memory | made in | a join takes |")
    print("|---|---|---|---|---|---|---|")
    for num_replicas in arguments.replicas:
        left, joined = moved(num_replicas)
        taken = cost(num_replicas)
        print(
            f"| {num_replicas:,} | {left:.2%} | {joined:.2%} | {taken.decision_us:.0f} µs | "
            f"{taken.mebibytes:.0f} MiB | {taken.make_ms:.0f} ms | {taken.join_ms:.1f} ms |",
            flush=True,
        )


if __name__ == "__main__":
    main()
