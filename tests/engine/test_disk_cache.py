"""The prefix cache on a disk: the same results as without one, whatever memory, disk and neighbours do meanwhile."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from io import FileIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.engine import block_files, block_reader, block_writer, disk_cache
from onward.engine.block_files import BlockFiles, Forgotten, Parts, forget
from onward.engine.client import Cancel, Stop, Submit
from onward.engine.disk_cache import DiskCache
from onward.engine.loop import EngineLoop
from onward.engine.prefix_tree import PackedScores
from onward.file_locks import NoLocks
from onward.private_files import PrivateFolder
from tests.engine.harness import ToyEngine, make_engine, make_job, run_alone, serve, wait_for_writer
from tests.examples import examples
from tests.waiting import PATIENCE_SECONDS, wait_for

BLOCK_TOKENS, BLOCK_BYTES = 32, 256
OpenEngine = Callable[..., ToyEngine]


@pytest.fixture
def open_engine(tmp_path: Path) -> Iterator[OpenEngine]:
    """Makes engines over one folder, with this many blocks."""
    engines: list[ToyEngine] = []

    def open_one(blocks: int = 256, identity: str = "fp_toy", max_bytes: int = 1 << 24) -> ToyEngine:
        engine = make_engine(blocks=blocks)
        files = BlockFiles(tmp_path / "cache", max_bytes, BLOCK_BYTES)
        engine.disk = DiskCache(files, identity, engine.cache, engine.model)
        engines.append(engine)
        return engine

    yield open_one
    for engine in engines:
        engine.close()


def prompt(length: int, seed: int = 0, common: int = 0) -> list[int]:
    """Random letters, the first `common` of which all prompts share."""
    letters = np.random.default_rng(seed).integers(97, 123, length)
    letters[:common] = np.random.default_rng(1000).integers(97, 123, 200)[: min(common, length)]
    return [int(letter) for letter in letters]


def blocks_in(folder: Path) -> int:
    return len(list((folder / "cache").glob("*.kv")))


JOBS = {
    "plain": lambda: make_job(prompt(200), max_tokens=8),
    "scored": lambda: make_job(prompt(200), max_tokens=4, score_top=2),
    "scored with ranks": lambda: make_job(prompt(200), max_tokens=4, score_top=3, score_ranks=True),
    "choices": lambda: make_job(prompt(200), max_tokens=8, choices=3),
    "salted": lambda: make_job(prompt(200), max_tokens=8, salt="s"),
    "only scored": lambda: make_job(prompt(200), max_tokens=0, score_top=1),
    "whole blocks": lambda: make_job(prompt(192), max_tokens=8),
    "two tokens more": lambda: make_job(prompt(194), max_tokens=8),
}


@pytest.mark.parametrize("kind", JOBS)
def test_law_3_a_prompt_from_the_disk_has_the_same_bits_as_a_computed_one(open_engine: OpenEngine, kind: str) -> None:
    expected = run_alone(JOBS[kind]())
    for attempt in range(3):
        engine = open_engine()
        (result,) = serve(engine, [JOBS[kind]()])
        assert result.bits == expected.bits
        assert (result.num_reused_tokens > 150) == (attempt > 0)
        assert engine.load().num_disk_tokens == (0 if not attempt else (result.num_reused_tokens + 31) // 32 * 32)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("plain", "scored"),
        ("scored", "plain"),
        ("scored", "scored with ranks"),
        ("scored with ranks", "only scored"),
        ("choices", "only scored"),
        ("salted", "plain"),
        ("whole blocks", "two tokens more"),
        ("two tokens more", "whole blocks"),
    ],
)
def test_law_3_whatever_was_asked_before_the_restart(open_engine: OpenEngine, first: str, second: str) -> None:
    serve(open_engine(), [JOBS[first]()])
    expected = run_alone(JOBS[second]())
    for _ in range(2):
        (result,) = serve(open_engine(), [JOBS[second]()])
        assert result.bits == expected.bits
    assert result.num_reused_tokens > 150, "scores that were added are kept, too"


def test_law_3_blocks_that_memory_has_no_room_for_come_back(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine(blocks=24)
    jobs = [make_job(prompt(300, seed), max_tokens=4, score_top=1) for seed in (0, 1, 2, 3, 0, 1)]
    results = serve(engine, jobs, one_by_one=True)
    for job, result in zip(jobs, results, strict=True):
        assert result.bits == run_alone(job).bits
    assert [result.num_reused_tokens > 200 for result in results] == [False] * 4 + [True] * 2
    load = engine.load()
    assert load.num_disk_tokens >= 2 * 256 and load.num_disk_read_bytes == load.num_disk_tokens // 32 * 256
    assert load.num_disk_written_bytes > 0 and load.num_damaged_files == 0


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_laws_2_3_and_4_hold_with_a_disk(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Jobs that share parts of prompts, in little memory, over several engines and damaged files."""
    hold_with_a_disk(data, tmp_path_factory.mktemp("cache"), lambda blocks: make_engine(blocks=blocks))


def hold_with_a_disk(data: st.DataObject, folder: Path, make: Callable[[int], ToyEngine]) -> None:
    """`make`: returns an engine with so many blocks."""
    draw = data.draw
    for _ in range(draw(st.integers(1, 3))):
        engine = make(draw(st.sampled_from([16, 24, 64])))
        files = BlockFiles(folder / "cache", draw(st.sampled_from([3000, 1 << 20])), BLOCK_BYTES)
        engine.disk = DiskCache(files, "fp_toy", engine.cache, engine.model)
        jobs = [
            make_job(
                prompt(draw(st.integers(1, 180)), draw(st.integers(0, 2)), common=draw(st.sampled_from([0, 40, 96]))),
                client=draw(st.integers(0, 2)),
                max_tokens=draw(st.integers(0, 6)),
                choices=draw(st.integers(1, 2)),
                score_top=draw(st.sampled_from([None, None, 0, 2])),
                score_ranks=draw(st.booleans()),
                salt=draw(st.sampled_from(["", "", "salt"])),
            )
            for _ in range(draw(st.integers(1, 6)))
        ]
        try:
            results = serve(engine, jobs, one_by_one=draw(st.booleans()), save=draw(st.booleans()))
        finally:
            engine.close()
        for job, result in zip(jobs, results, strict=True):
            assert result.bits == run_alone(job).bits
        # Drawn as one number: the number of files depends on the writer's thread, but the draw must not.
        damage = np.random.default_rng(draw(st.integers(0, 99)))
        for path in sorted((folder / "cache").glob("*.kv")):
            if damage.integers(10) == 0:
                path.write_bytes(path.read_bytes()[: damage.integers(200)])


def test_a_job_that_scores_uses_no_blocks_without_scores(open_engine: OpenEngine) -> None:
    serve(open_engine(), [JOBS["plain"]()])
    (result,) = serve(open_engine(), [JOBS["scored"]()])
    assert result.num_reused_tokens == 0
    (result,) = serve(open_engine(), [JOBS["scored"]()])
    assert result.num_reused_tokens > 150


def test_another_model_and_another_salt_find_nothing(open_engine: OpenEngine) -> None:
    serve(open_engine(), [JOBS["plain"](), JOBS["salted"]()])
    (other,) = serve(open_engine(identity="fp_other"), [JOBS["plain"]()])
    (salted,) = serve(open_engine(), [make_job(prompt(200), salt="t")])
    assert (other.num_reused_tokens, salted.num_reused_tokens) == (0, 0)


def test_nothing_that_was_generated_is_written(open_engine: OpenEngine, tmp_path: Path) -> None:
    """Of a prompt of six blocks and a half, six are written: the seventh has generated tokens, too."""
    serve(open_engine(), [make_job(prompt(200), max_tokens=100, ignore_end=True)])
    assert blocks_in(tmp_path) == 6
    engine = open_engine()
    (result,) = serve(engine, [make_job(prompt(200), max_tokens=4)])
    assert result.num_reused_tokens == 192


def test_damaged_files_are_computed_again_counted_and_replaced(open_engine: OpenEngine, tmp_path: Path) -> None:
    serve(open_engine(), [JOBS["scored"]()])
    for path in (tmp_path / "cache").glob("*.kv"):
        path.write_bytes(path.read_bytes()[:-7])
    engine = open_engine()
    (result,) = serve(engine, [JOBS["scored"]()])
    assert result.bits == run_alone(JOBS["scored"]()).bits and result.num_reused_tokens == 0
    assert engine.load().num_damaged_files == 1
    (result,) = serve(open_engine(), [JOBS["scored"]()])
    assert result.num_reused_tokens > 150


def test_jobs_that_need_the_same_blocks_read_them_once(open_engine: OpenEngine) -> None:
    serve(open_engine(), [JOBS["plain"]()])
    engine = open_engine()
    jobs = [make_job(prompt(200 + extra), max_tokens=4, client=extra) for extra in range(5)]
    jobs += [make_job([*prompt(192), *prompt(50, seed)], max_tokens=4) for seed in (7, 8)]
    for job, result in zip(jobs, serve(engine, jobs), strict=True):
        assert result.bits == run_alone(job).bits and result.num_reused_tokens >= 192
    assert engine.load().num_disk_tokens == 192


def test_a_step_that_fails_leaves_nothing_of_its_prompts_on_the_disk(open_engine: OpenEngine, tmp_path: Path) -> None:
    """Blocks that the tree discards because they may be damaged must not come back from the disk."""
    serve(open_engine(), [JOBS["plain"](), make_job(prompt(100, seed=5))])
    engine = open_engine()
    serve(engine, [JOBS["plain"]()], save=False)
    engine.cache.discard(prompt(200), "")
    engine.check()
    assert engine.disk is not None
    engine.disk.save()
    assert blocks_in(tmp_path) == 3, "those of the other prompt"
    (result,) = serve(open_engine(), [JOBS["plain"]()])
    assert result.num_reused_tokens == 0


def test_what_is_read_while_it_is_discarded_is_not_added(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(open_engine(), [JOBS["plain"]()])
    engine = open_engine()
    assert engine.disk is not None
    finished = threading.Event()
    restore = engine.disk.begin(JOBS["plain"](), lambda restore: finished.set())
    assert restore is not None and finished.wait(PATIENCE_SECONDS) and len(restore.blocks) == 6
    engine.check()
    engine.cache.discard(prompt(200), "")
    engine.disk.finish(restore)
    engine.check()
    assert engine.cache.pool.num_cached == 0 and engine.cache.pool.num_used == 0


def test_what_was_forgotten_is_in_no_memory_that_could_be_written(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine()
    serve(engine, [JOBS["plain"]()], save=False)
    assert engine.cache.pool.num_cached > 0
    forget(tmp_path / "cache")
    assert engine.disk is not None
    engine.disk.save()
    assert blocks_in(tmp_path) == 0


def test_a_running_server_drops_what_was_forgotten_and_continues(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine(blocks=24)
    serve(engine, [make_job(prompt(300, seed), max_tokens=2) for seed in (0, 1)], one_by_one=True, save=False)
    forget(tmp_path / "cache")
    jobs = [make_job(prompt(300, seed), max_tokens=2) for seed in (2, 3, 0, 4, 5, 0, 6, 7)]
    results = serve(engine, jobs, one_by_one=True)
    for job, result in zip(jobs, results, strict=True):
        assert result.bits == run_alone(job).bits
    forgotten = open_engine()
    (result,) = serve(forgotten, [make_job(prompt(300, 1), max_tokens=2)])
    assert result.num_reused_tokens == 0
    (result,) = serve(open_engine(), [make_job(prompt(300, 7), max_tokens=2)])
    assert result.num_reused_tokens > 200, "what came afterwards is kept"


def test_a_full_disk_is_one_line_in_the_log_and_loses_nothing(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(block_files, "MIN_FREE_BYTES", 1 << 62)
    monkeypatch.setattr(block_writer, "PAUSE_SECONDS", 0.0)
    engine = open_engine(blocks=24)
    jobs = [make_job(prompt(300, seed), max_tokens=2) for seed in range(5)]
    for job, result in zip(jobs, serve(engine, jobs, one_by_one=True), strict=True):
        assert result.bits == run_alone(job).bits
    (line,) = [record.getMessage() for record in caplog.records if "prefix cache" in record.getMessage()]
    assert str(tmp_path / "cache") in line and "No space left" in line
    assert blocks_in(tmp_path) == 0


class SlowFiles:
    """Makes `read` wait."""

    def __init__(self, files: BlockFiles, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self.begun = threading.Event(), threading.Event()
        self._read = files.read
        monkeypatch.setattr(files, "read", self.read)

    def read(self, key: bytes, parts: Parts) -> PackedScores | None:
        self.begun.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        return self._read(key, parts)


SlowDown = Callable[[ToyEngine], SlowFiles]


@pytest.fixture
def slow_files(open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowDown]:
    """Makes an engine's reads wait, at most until the test ends, before engines are closed."""
    made: list[SlowFiles] = []

    def make(engine: ToyEngine) -> SlowFiles:
        assert engine.disk is not None
        made.append(SlowFiles(engine.disk._files, monkeypatch))
        return made[-1]

    yield make
    for each in made:
        each.go_on.set()


class Clock:
    """Stands in for `time` in a module."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


def test_a_disk_that_hangs_delays_a_job_for_a_while_and_no_other(
    open_engine: OpenEngine, slow_files: SlowDown, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(open_engine(), [JOBS["plain"]()])
    monkeypatch.setattr(disk_cache, "READ_SECONDS", 0.05)
    engine = open_engine()
    slow_files(engine)
    jobs = [JOBS["plain"](), JOBS["plain"](), make_job(prompt(90, seed=9)), JOBS["choices"]()]
    results = serve(engine, jobs, save=False)
    for job, result in zip(jobs, results, strict=True):
        assert result.bits == run_alone(job).bits


def test_a_job_that_is_cancelled_while_its_blocks_are_read_ends(open_engine: OpenEngine, slow_files: SlowDown) -> None:
    serve(open_engine(), [JOBS["plain"]()])
    engine = open_engine()
    slow = slow_files(engine)
    loop, job = EngineLoop(engine), JOBS["plain"]()
    loop.mailbox.put(Submit([job]))

    def publish() -> None:
        assert not loop.take_events()
        if slow.go_on.is_set():
            if engine.disk is not None and engine.disk._restores:
                return
            engine.check()
            loop.mailbox.put(Stop())
        elif job.id in loop.preparing:
            assert slow.begun.wait(PATIENCE_SECONDS)
            loop.mailbox.put(Cancel(job.request))
            slow.go_on.set()

    loop.run(publish)
    assert not loop.preparing and engine.idle and engine.cache.pool.num_used == 0
    assert engine.load().num_disk_tokens == 192, "others may want what was read"


def test_reading_leaves_memory_for_those_that_run(open_engine: OpenEngine) -> None:
    serve(open_engine(), [make_job(prompt(600), max_tokens=1)])
    engine = open_engine(blocks=24)
    assert engine.disk is not None
    engine.cache.pool.allocate(12)
    restore = engine.disk.begin(make_job(prompt(600)), lambda restore: None)
    assert restore is not None and len(restore.keys) == 6
    assert engine.disk.begin(make_job(prompt(500, seed=3)), lambda restore: None) is None


def test_a_read_that_hangs_has_no_block_of_the_engine(
    open_engine: OpenEngine, slow_files: SlowDown, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another job that needs nearly all memory runs meanwhile."""
    serve(open_engine(), [make_job(prompt(600), max_tokens=1)])
    monkeypatch.setattr(disk_cache, "READ_SECONDS", 0.05)
    engine = open_engine(blocks=24)
    slow = slow_files(engine)
    assert engine.disk is not None
    assert engine.disk.begin(make_job(prompt(600)), lambda restore: None) is not None
    assert slow.begun.wait(PATIENCE_SECONDS)
    engine.check()
    assert engine.cache.pool.num_used == 0
    large = make_job(prompt(650, seed=4), max_tokens=4)
    (result,) = serve(engine, [large], save=False)
    assert result.bits == run_alone(large).bits


def test_what_is_read_has_a_bound_and_a_longer_prompt_comes_in_parts(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = [prompt(200), prompt(300, seed=1), prompt(250, seed=2)]
    serve(open_engine(), [make_job(each, max_tokens=1) for each in prompts])
    monkeypatch.setattr(block_reader, "MAX_READ_BYTES", 1000)
    engine = open_engine()
    assert engine.disk is not None
    disk, read, buffered = engine.disk, engine.disk._files.read, list[int]()

    def counted(key: bytes, parts: Parts) -> PackedScores | None:
        buffered.append(disk._reader.num_buffered_bytes)
        return read(key, parts)

    monkeypatch.setattr(disk._files, "read", counted)
    jobs = [make_job(each, max_tokens=4, client=client) for client, each in enumerate(prompts)]
    for job, result in zip(jobs, serve(engine, jobs), strict=True):
        assert result.bits == run_alone(job).bits and result.num_reused_tokens >= 192
    assert len(buffered) == 6 + 9 + 7 and 500 < max(buffered) <= 1000 and disk._reader.num_buffered_bytes == 0


def test_a_disk_that_hangs_at_the_end_is_waited_for_no_longer_than_one_that_does_not(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine, go_on = open_engine(), threading.Event()
    assert engine.disk is not None
    serve(engine, [JOBS["plain"]()], save=False)
    monkeypatch.setattr(disk_cache, "PREFIX_CACHE_SAVE_SECONDS", 0.05)
    monkeypatch.setattr(block_writer, "MAX_QUEUED_BYTES", 600)
    monkeypatch.setattr(engine.disk._files, "write", lambda *_: go_on.wait(PATIENCE_SECONDS) and 0)
    try:
        engine.disk.save()
        assert not go_on.is_set() and not blocks_in(tmp_path)
    finally:
        go_on.set()


def test_what_is_discarded_is_gone_before_its_files_are_removed(open_engine: OpenEngine, tmp_path: Path) -> None:
    """So are blocks that follow it only on the disk, and those that wait to be written. Blocks computed afterwards are
    written again."""
    longer = make_job([*prompt(200), *prompt(200, seed=6)], max_tokens=1)
    serve(open_engine(), [longer, make_job(prompt(100, seed=5), max_tokens=1)])
    assert blocks_in(tmp_path) == 12 + 3
    engine, go_on = open_engine(), threading.Event()
    assert engine.disk is not None
    other = [*prompt(192), *prompt(100, seed=9)]
    serve(engine, [JOBS["plain"](), make_job(other, max_tokens=1)], save=False)
    disk = engine.disk
    disk._writer.put(partial(wait_for, go_on.is_set))
    disk._writer.look_around()
    try:
        for node in engine.cache.tree.match(other, 9):
            disk.evicted(node)
        assert disk._writer._num_queued_bytes
        engine.cache.discard(prompt(200), "")
        assert disk.begin(JOBS["plain"](), lambda restore: None) is None
        assert disk.begin(make_job(longer.prompt), lambda restore: None) is None
    finally:
        go_on.set()
    wait_for_writer(engine)
    assert blocks_in(tmp_path) == 3, "those of the other prompt"
    (result,) = serve(engine, [JOBS["plain"]()])
    assert result.num_reused_tokens == 0 and blocks_in(tmp_path) == 6 + 3
    (result,) = serve(open_engine(), [make_job(longer.prompt, max_tokens=1)])
    assert result.num_reused_tokens == 192


def test_what_is_discarded_may_be_on_the_disk_alone(open_engine: OpenEngine, tmp_path: Path) -> None:
    serve(open_engine(), [JOBS["plain"]()])
    engine = open_engine()
    engine.cache.discard(prompt(200), "")
    wait_for_writer(engine)
    assert blocks_in(tmp_path) == 0


def test_a_request_that_bans_all_tokens_discards_no_blocks(open_engine: OpenEngine, tmp_path: Path) -> None:
    engine = open_engine()
    serve(engine, [JOBS["plain"]()], save=False)
    bans = tuple((token, -np.inf) for token in range(engine.model.vocab_size))
    engine.add(make_job(prompt(200), logit_bias=bans))
    while not engine.idle:
        engine.step()
    assert engine.disk is not None and len(engine.cache.tree.match(prompt(200), 6)) == 6
    engine.disk.save()
    assert blocks_in(tmp_path) == 6


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.ESTALE, errno.EACCES])
def test_a_block_that_cannot_be_read_now_is_not_removed(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Nor is it read again and again, which may take long. It is rewritten."""
    serve(open_engine(), [JOBS["plain"]()])
    engine, tried = open_engine(), list[str]()

    def fail(folder: PrivateFolder, name: str, max_bytes: int) -> FileIO:
        tried.append(name)
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(PrivateFolder, "reader", fail)
        results = serve(engine, [JOBS["plain"]() for _ in range(3)], save=False)
    assert all(result.bits == run_alone(JOBS["plain"]()).bits for result in results) and len(tried) == 1
    assert results[0].num_reused_tokens == 0 and blocks_in(tmp_path) == 6 and engine.load().num_damaged_files == 0
    assert engine.disk is not None
    engine.disk.save()
    assert engine.load().num_disk_written_bytes > BLOCK_BYTES
    (result,) = serve(open_engine(), [JOBS["plain"]()])
    assert result.num_reused_tokens == 192


def test_waiting_for_other_reads_is_not_a_sign_of_a_disk_that_hangs(
    open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk reads, but slowly: a client's second job has waited for longer than reading one block may take."""
    mine, other = [prompt(100, seed) for seed in (0, 1)], prompt(100, seed=2)
    serve(open_engine(), [make_job(each, max_tokens=1) for each in (*mine, other)])
    engine = open_engine()
    assert engine.disk is not None
    disk, clock, steps, begun = engine.disk, Clock(), threading.Semaphore(0), threading.Semaphore(0)
    monkeypatch.setattr(disk_cache, "time", clock)
    monkeypatch.setattr(block_reader, "time", clock)
    monkeypatch.setattr(disk_cache, "READ_SECONDS", 5.0)
    read = disk._files.read

    def slow(key: bytes, parts: Parts) -> PackedScores | None:
        begun.release()
        assert steps.acquire(timeout=60)
        return read(key, parts)

    monkeypatch.setattr(disk._files, "read", slow)
    try:
        for each in mine:
            assert disk.begin(make_job(each, client=1), lambda restore: None) is not None
        assert begun.acquire(timeout=60)
        clock.now += 4
        steps.release()
        assert begun.acquire(timeout=60), "the next block of the first job"
        clock.now += 4
        assert len(disk.overdue()) == 2
        assert disk.begin(make_job(other, client=2), lambda restore: None) is not None
        clock.now += 4
        assert disk.begin(make_job(prompt(100, seed=2), client=3), lambda restore: None) is None, "now it hangs"
    finally:
        steps.release(20)


def test_a_job_that_waits_for_several_reads_waits_no_longer_in_all(
    open_engine: OpenEngine, slow_files: SlowDown, monkeypatch: pytest.MonkeyPatch
) -> None:
    longer = [*prompt(192), *prompt(100, seed=6)]
    serve(open_engine(), [make_job(longer, max_tokens=1)])
    engine = open_engine()
    assert engine.disk is not None
    clock = Clock()
    monkeypatch.setattr(disk_cache, "time", clock)
    monkeypatch.setattr(block_reader, "time", clock)
    monkeypatch.setattr(disk_cache, "READ_SECONDS", 5.0)
    loop, first, second = EngineLoop(engine), JOBS["plain"](), make_job(longer, max_tokens=1)
    loop.mailbox.put(Submit([first, second]))
    loop._empty_mailbox(wait=False)
    (restore,) = engine.disk._restores
    assert [each.job for each in restore.waiting] == [first, second]
    restored = loop.mailbox.get(timeout=60)
    clock.now += 3
    slow_files(engine)
    loop._execute(restored)
    assert list(loop.preparing) == [second.id] and engine.disk.overdue() == []
    clock.now += 3
    assert engine.disk.overdue() == [second]


def test_what_was_being_computed_when_blocks_were_forgotten_is_not_written(
    open_engine: OpenEngine, tmp_path: Path
) -> None:
    engine = open_engine()
    assert engine.disk is not None
    serve(engine, [make_job(prompt(200, seed=3), max_tokens=1)], save=False)
    engine.add(make_job(prompt(1500), max_tokens=1, choices=2))
    engine.add(make_job(prompt(300, seed=2), max_tokens=1))
    engine.step()
    forget(tmp_path / "cache")
    wait_for_writer(engine)
    engine.disk._writer.look_around()
    wait_for_writer(engine)
    engine.disk._look_around()
    while not engine.idle:
        engine.step()
        engine.check()
    assert not engine.cache.tree.blocks
    engine.undelivered = []
    serve(engine, [make_job(prompt(100, seed=4), max_tokens=1)])
    assert blocks_in(tmp_path) == 3, "that of the job that came later"


def test_without_locks_the_cache_works_and_what_is_forgotten_meanwhile_is_not_written(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(*_: object, **__: object) -> bool:
        raise NoLocks

    for name in ("try_lock", "wait_for_lock"):
        monkeypatch.setattr(block_files, name, no_locks)
    serve(open_engine(), [JOBS["plain"]()])
    engine = open_engine()
    (result,) = serve(engine, [JOBS["plain"]()], save=False)
    assert result.num_reused_tokens == 192
    replacing = PrivateFolder.replacing

    @contextmanager
    def forgotten_meanwhile(folder: PrivateFolder, name: str, temporary: str) -> Iterator[BinaryIO]:
        with replacing(folder, name, temporary) as file:
            yield file
            (tmp_path / "cache" / "lock").write_text(
                "another", encoding="utf-8"
            )  # as `forget` does before it removes files

    monkeypatch.setattr(PrivateFolder, "replacing", forgotten_meanwhile)
    files = BlockFiles(tmp_path / "cache", 1 << 20, BLOCK_BYTES)
    with pytest.raises(Forgotten):
        files.write(bytes(40), [np.zeros(BLOCK_BYTES, np.uint8)], None, 0, files.word)
    assert not (tmp_path / "cache" / f"{bytes(40).hex()}.kv").exists()
