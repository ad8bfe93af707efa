"""Routing: affinity, bounded load, and what moves when replicas come and go."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from onward.routing import BLOCK_TOKENS, LOAD_FACTOR, MAX_KEYS, MIN_BOUND, Ring, Router, prefix_keys

names = st.sets(st.sampled_from([f"replica-{index}" for index in range(12)]), min_size=1)
prompts = st.lists(st.integers(0, 3), max_size=4 * BLOCK_TOKENS)


@given(prompts, prompts)
def test_equal_keys_are_equal_beginnings(left: list[int], right: list[int]) -> None:
    shared = 0
    while shared < min(len(left), len(right)) and left[shared] == right[shared]:
        shared += 1
    pairs = zip(prefix_keys(left), prefix_keys(right), strict=False)
    num_equal = sum(one == other for one, other in pairs)
    if left == right:
        assert prefix_keys(left) == prefix_keys(right)
    elif len(left) >= BLOCK_TOKENS and len(right) >= BLOCK_TOKENS:
        assert num_equal == shared // BLOCK_TOKENS


def test_keys_are_few_and_never_none() -> None:
    assert len(prefix_keys([])) == len(prefix_keys([1])) == 1
    assert prefix_keys([1]) != prefix_keys([2])
    assert len(prefix_keys([7] * 100_000)) == MAX_KEYS


def test_keys_and_ring_are_the_same_in_every_process() -> None:
    program = (
        "from onward.routing import prefix_keys; from onward.routing import Ring;"
        "keys = prefix_keys(range(100)); print(keys, list(Ring(['a', 'b', 'c', 'd']).walk(keys[0])))"
    )
    ran = []
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", program]
        ran.append(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert ran[0] == ran[1]


@given(names, st.integers(0, 2**64 - 1))
def test_a_walk_visits_every_replica_once(replicas: set[str], key: int) -> None:
    assert sorted(Ring(replicas).walk(key)) == sorted(replicas)


@given(names, st.integers(0, 2**64 - 1), st.sampled_from([f"replica-{index}" for index in range(12)]))
def test_a_replica_that_leaves_moves_only_its_own_keys(replicas: set[str], key: int, leaver: str) -> None:
    before = list(Ring(replicas).walk(key))
    after = list(Ring(replicas - {leaver}).walk(key))
    assert after == [name for name in before if name != leaver]


@given(names, names, st.integers(0, 2**64 - 1))
def test_a_ring_that_is_changed_is_the_same_as_a_new_one(before: set[str], after: set[str], key: int) -> None:
    changed = Ring(before).changed(after)
    assert changed.names == after
    assert list(changed.walk(key)) == list(Ring(after).walk(key))


def test_the_ring_shares_keys_about_equally() -> None:
    ring = Ring(f"replica-{index}" for index in range(8))
    counts = Counter(next(ring.walk(prefix_keys([index])[0])) for index in range(8_000))
    assert len(counts) == 8
    assert max(counts.values()) < 1.6 * 1_000


@given(names, st.lists(st.tuples(prompts, st.integers(1, 6)), max_size=60))
def test_no_replica_is_loaded_beyond_the_bound(replicas: set[str], jobs: list[tuple[list[int], int]]) -> None:
    router = Router(replicas)
    total = 0
    for prompt, size in jobs:
        keys = prefix_keys(prompt)
        best = router.rank(keys, size)[0]
        router.begin(best, keys, size)
        total += size
        # The mean plus the largest job: where no replica has room for one, the least loaded gets it.
        assert router.load(best) <= max(MIN_BOUND, ceil(LOAD_FACTOR * total / len(replicas))) + 6
    assert sum(map(router.load, replicas)) == total


@given(names, st.lists(st.tuples(prompts, st.integers(1, 6), st.booleans()), max_size=40))
def test_load_returns_to_zero_when_all_jobs_have_ended(
    replicas: set[str], jobs: list[tuple[list[int], int, bool]]
) -> None:
    router = Router(replicas)
    running = []
    for prompt, size, leaves in jobs:
        keys = prefix_keys(prompt)
        name = router.rank(keys, size)[0]
        router.begin(name, keys, size)
        running.append((name, size))
        if leaves and len(router.names) > 1:
            router.set_replicas(set(router.names) - {name})
    for name, size in running:
        router.end(name, size)
    assert (
        all(router.load(name) == 0 for name in replicas)
        and not router._own
        and not router._total
        and not router._own_total
    )


def test_a_prompt_goes_where_its_longest_part_is_cached() -> None:
    router = Router(["a", "b", "c", "d"])
    base = list(range(2 * BLOCK_TOKENS))
    first, second = prefix_keys([*base, *[1] * BLOCK_TOKENS]), prefix_keys([*base, *[2] * BLOCK_TOKENS])
    home = router.rank(first)[0]
    assert router.rank(second)[0] == home  # the same first block
    away = next(name for name in router.names if name != home)
    router.begin(away, second)
    assert router.rank(second)[0] == away  # the longest part
    router.begin(home, first)
    assert router.rank(first)[0] == home


def test_a_full_replica_passes_jobs_on_and_keeps_them_off_others() -> None:
    router = Router(["a", "b", "c"])
    keys = prefix_keys([1, 2, 3])
    order = router.rank(keys)
    for _ in range(MIN_BOUND):
        router.begin(order[0], keys)
    assert router.rank(keys) == [order[1], order[2], order[0]]
    router.end(order[0])
    assert router.rank(keys)[0] == order[0]


def test_load_that_other_routers_cause_counts() -> None:
    router = Router(["a", "b"])
    keys = prefix_keys([1])
    home, other = router.rank(keys)
    router.reported(home, 100)
    assert router.rank(keys) == [other, home]
    router.begin(home, keys, 4)
    router.reported(home, 4)
    assert router.load(home) == 4
    assert router.rank(keys) == [home, other]


def test_faces_that_know_of_each_other_only_by_reports_keep_the_bound_together() -> None:
    names, num_faces, num_jobs = [f"replica-{index}" for index in range(8)], 8, 25
    faces = [Router(names) for _ in range(num_faces)]
    for face in faces:
        for name in names:
            face.reported(name, num_faces * num_jobs // len(names))  # the state so far
    keys = prefix_keys([1])  # all jobs have the same prefix
    loads: Counter[str] = Counter()
    for _ in range(num_jobs):
        for face in faces:
            name = face.rank(keys, limit=1)[0]
            face.begin(name, keys)
            loads[name] += 1
    bound = num_faces * ceil(LOAD_FACTOR * num_jobs / len(names))
    assert max(loads.values()) <= bound < num_faces * num_jobs / 4


def test_only_eligible_replicas_are_ranked() -> None:
    router = Router(["a", "b", "c"])
    assert router.rank((5,), eligible={"b"}) == ["b"]
    assert router.rank((5,), eligible=set()) == []
    assert Router().rank((5,)) == []


@given(names, st.lists(st.tuples(prompts, st.integers(1, 6)), max_size=40), prompts, st.integers(1, 4))
def test_a_limited_ranking_is_the_beginning_of_the_whole_one(
    replicas: set[str], jobs: list[tuple[list[int], int]], prompt: list[int], limit: int
) -> None:
    router = Router(replicas)
    for one, size in jobs:
        router.begin(router.rank(prefix_keys(one), size, limit=1)[0], prefix_keys(one), size)
    keys = prefix_keys(prompt)
    assert router.rank(keys, 2, limit=limit) == router.rank(keys, 2)[:limit]
    assert router._total == router._own_total == sum(map(router.load, replicas))


def test_the_number_of_remembered_prefixes_is_bounded() -> None:
    router = Router(["a"], max_remembered=10)
    for index in range(100):
        router.begin("a", prefix_keys([index]))
    assert len(router._holders) == 10


def test_no_job_waits_for_a_row_while_another_replica_has_one() -> None:
    router = Router()
    router.set_replicas(["a", "b"], {"a": 12, "b": 12})
    keys = prefix_keys([1])  # all jobs have the same prefix
    for _ in range(24):
        router.begin(router.rank(keys)[0], keys)
    assert router.load("a") == router.load("b") == 12
    home = router.rank(keys)[0]
    for _ in range(3):  # all rows are taken, so the prefix counts again
        assert router.rank(keys)[0] == home
        router.begin(home, keys)


def test_a_report_from_before_the_end_of_jobs_is_not_the_load_of_others() -> None:
    router = Router(["a"])
    keys = prefix_keys([1])
    for _ in range(5):
        router.begin("a", keys)
    router.reported("a", 5)
    for _ in range(4):
        router.end("a")
    for _ in range(2):
        router.reported("a", 5)
        assert router.load("a") == 1
    router.reported("a", 5)
    assert router.load("a") == 5
