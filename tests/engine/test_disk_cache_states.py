"""The prefix cache on a disk, where sequences have states: blocks are of use up to a snapshot, and with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onward.engine import block_writer
from onward.engine.block_files import BlockFiles, file_bytes, forget
from onward.engine.disk_cache import DiskCache
from tests.engine.harness import ToyEngine, make_job, run_alone, serve, wait_for_writer
from tests.engine.test_block_writer import held
from tests.engine.test_disk_cache import BLOCK_BYTES, JOBS, blocks_in, hold_with_a_disk, prompt
from tests.engine.toy_states import engine_with_states
from tests.examples import examples

STATE_FILE = file_bytes(16, None)
OpenEngine = Callable[..., ToyEngine]


@pytest.fixture
def open_engine(tmp_path: Path) -> Iterator[OpenEngine]:
    """Makes engines over one folder."""
    engines: list[ToyEngine] = []

    def open_one(states: int = 8, blocks: int = 256) -> ToyEngine:
        engine = engine_with_states(states, blocks)
        files = BlockFiles(tmp_path / "cache", 1 << 24, BLOCK_BYTES)
        engine.disk = DiskCache(files, "fp_toy", engine.cache, engine.model)
        engines.append(engine)
        return engine

    yield open_one
    for engine in engines:
        engine.close()


def states_in(folder: Path) -> list[Path]:
    return [path for path in (folder / "cache").glob("*.kv") if path.stat().st_size == STATE_FILE]


@pytest.mark.parametrize("kind", JOBS)
def test_law_3_a_prompt_from_the_disk_has_the_same_bits_as_a_computed_one(open_engine: OpenEngine, kind: str) -> None:
    expected = run_alone(JOBS[kind]())
    for attempt in range(3):
        engine = open_engine()
        (result,) = serve(engine, [JOBS[kind]()])
        assert result.bits == expected.bits
        assert (result.num_reused_tokens >= 128) == (attempt > 0)
        assert (engine.load().num_disk_tokens >= result.num_reused_tokens) and engine.load().num_damaged_files == 0


@pytest.mark.parametrize(
    ("first", "second"), [("plain", "scored"), ("scored", "plain"), ("choices", "only scored"), ("salted", "plain")]
)
def test_law_3_whatever_was_asked_before_the_restart(open_engine: OpenEngine, first: str, second: str) -> None:
    serve(open_engine(), [JOBS[first]()])
    expected = run_alone(JOBS[second]())
    for _ in range(2):
        (result,) = serve(open_engine(), [JOBS[second]()])
        assert result.bits == expected.bits
    assert result.num_reused_tokens >= 128


@settings(max_examples=examples(40), deadline=None)
@given(data=st.data(), num_states=st.sampled_from([1, 2, 3, 5, 12]))
def test_laws_2_3_and_4_hold_with_a_disk(
    data: st.DataObject, num_states: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hold_with_a_disk(data, tmp_path_factory.mktemp("cache"), lambda blocks: engine_with_states(num_states, blocks))


def test_a_damaged_state_is_computed_again_counted_and_replaced(open_engine: OpenEngine, tmp_path: Path) -> None:
    serve(open_engine(), [JOBS["plain"]()])
    (state,) = states_in(tmp_path)
    state.write_bytes(state.read_bytes()[:-1] + b"?")
    engine = open_engine()
    (result,) = serve(engine, [JOBS["plain"]()])
    assert result.bits == run_alone(JOBS["plain"]()).bits
    assert (result.num_reused_tokens, engine.load().num_damaged_files) == (0, 1)
    (result,) = serve(open_engine(), [JOBS["plain"]()])
    assert result.num_reused_tokens == 192


def test_blocks_without_a_state_are_not_read(open_engine: OpenEngine, tmp_path: Path) -> None:
    serve(open_engine(), [JOBS["plain"]()])
    for state in states_in(tmp_path):
        state.unlink()
    engine = open_engine()
    (result,) = serve(engine, [JOBS["plain"]()])
    assert result.bits == run_alone(JOBS["plain"]()).bits
    assert (result.num_reused_tokens, engine.load().num_disk_read_bytes) == (0, 0)


def test_a_used_snapshot_that_memory_has_no_room_for_comes_back(open_engine: OpenEngine, tmp_path: Path) -> None:
    """Its blocks are still there. One from which nothing has continued is not written while the engine runs."""
    engine = open_engine(states=2)
    common = prompt(130)
    again = [make_job([*common, *prompt(20, seed)], max_tokens=4) for seed in (1, 2)]
    serve(engine, again, one_by_one=True, save=False)
    serve(engine, [make_job(prompt(150, seed), max_tokens=4) for seed in range(3, 7)], save=False)  # two at a time
    wait_for_writer(engine)
    assert len(states_in(tmp_path)) == 1, "what both begin with"
    third = make_job([*common, *prompt(20, 9)], max_tokens=4)
    (result,) = serve(engine, [third], save=False)
    assert result.bits == run_alone(third).bits and result.num_reused_tokens == 128
    load = engine.load()
    assert load.num_disk_tokens == 0 and load.num_disk_read_bytes == 16


def test_a_used_snapshot_has_room_after_its_block_however_large_it_is(
    open_engine: OpenEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_writer, "MAX_QUEUED_BYTES", file_bytes(BLOCK_BYTES, None))
    engine = open_engine()
    common = prompt(130)
    serve(engine, [make_job([*common, *prompt(20, seed)]) for seed in (1, 2)], one_by_one=True, save=False)
    node = engine.cache.tree.match(common, 4)[-1]
    assert engine.disk is not None
    with held(engine.disk._writer):
        engine.disk.evicted(node)
    wait_for_writer(engine)
    assert (len(states_in(tmp_path)), blocks_in(tmp_path)) == (1, 2)


def test_what_is_discarded_or_forgotten_has_no_state_on_the_disk(open_engine: OpenEngine, tmp_path: Path) -> None:
    serve(open_engine(), [JOBS["plain"](), make_job(prompt(100, seed=5))])
    assert len(states_in(tmp_path)) == 2
    engine = open_engine()
    serve(engine, [JOBS["plain"]()], save=False)
    engine.cache.discard(prompt(200), "")
    engine.check()
    assert engine.disk is not None
    engine.disk.save()
    assert len(states_in(tmp_path)) == 1, "that of the other prompt"
    (result,) = serve(open_engine(), [JOBS["plain"]()], save=False)
    assert result.num_reused_tokens == 0
    assert forget(tmp_path / "cache") == 4 and blocks_in(tmp_path) == 0


def test_states_are_for_the_user_alone(open_engine: OpenEngine, tmp_path: Path) -> None:
    serve(open_engine(), [JOBS["plain"]()])
    assert {path.stat().st_mode & 0o777 for path in states_in(tmp_path)} == {0o600}
