"""The queue of lines in both databases: no line has two holders or two results, whoever dies."""

from __future__ import annotations

import threading

from sqlalchemy import Connection, event, select

from onward.service.batch_records import BatchLine, NewLine, Result, StoredBatch
from onward.service.batches import create_batch, find_batch, finish, start
from onward.service.files import find_file, list_files, read_parts
from onward.service.lines import (
    MAX_STRIKES,
    RUNNING,
    SUSPECT_LOSSES,
    add_lines,
    claim,
    end_unrun,
    finish_line,
    give_back,
    give_back_of_dead,
    left_of,
    unrun,
)
from onward.service.reservations import beat
from onward.service.store import Store
from onward.service.tables import FACES, FILES, LINES

from .conftest import Clock


def make_batch(connection: Connection, clock: Clock, batch_id: str = "batch_1", lines: int = 6) -> StoredBatch:
    batch = StoredBatch(
        id=batch_id,
        key_id="key_a",
        endpoint="/v1/completions",
        input_file_id="file-1",
        completion_window="24h",
        status="validating",
        created_ms=clock.now,
        expires_ms=clock.now + 1000,
    )
    create_batch(connection, batch)
    add_lines(connection, batch_id, [NewLine(number, b'"c%d"' % number, b"{}") for number in range(1, lines + 1)])
    assert start(connection, batch, "toy", lines, clock.now)
    found = find_batch(connection, "key_a", batch_id)
    assert found is not None and found.status == "in_progress"
    return found


def take(connection: Connection, face: str, *batch_ids: str, alone: bool = False) -> list[int]:
    found = claim(connection, face, batch_ids, may_run_alone=alone)
    assert found is not None
    return [line.number for line in found]


def held(connection: Connection, face: str) -> list[BatchLine]:
    rows = connection.execute(select(LINES).where(LINES.c.face == face).order_by(LINES.c.number))
    return [
        BatchLine(batch_id=row.batch_id, key_id="key_a", number=row.number, custom_id=b"", request=b"", created_ms=0)
        for row in rows
    ]


RESULT = Result(data=b"{}\n", is_output=True, prompt_tokens=2, completion_tokens=3)


def test_lines_are_taken_in_order_and_by_one_server(store: Store, clock: Clock) -> None:
    with store.begin() as connection:
        make_batch(connection, clock)
        make_batch(connection, clock, "batch_2", lines=1)
        assert take(connection, "a", "batch_1", "batch_2", "batch_1") == [1, 2, 1]
        assert take(connection, "b", "batch_1", "batch_2") == [3]
        assert take(connection, "b", *["batch_1"] * 9) == [4, 5, 6]


def test_two_servers_at_once_take_different_lines(store: Store, clock: Clock) -> None:
    with store.begin() as connection:
        make_batch(connection, clock, lines=200)
    taken: dict[str, list[int]] = {"a": [], "b": [], "c": []}

    def work(face: str) -> None:
        while True:
            with store.begin() as connection:
                found = take(connection, face, *["batch_1"] * 7)
            if not found:
                return
            taken[face] += found

    threads = [threading.Thread(target=work, args=[face]) for face in taken]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(number for found in taken.values() for number in found) == list(range(1, 201))


def test_a_line_has_one_result_though_its_server_was_taken_for_dead(store: Store, clock: Clock) -> None:
    with store.begin() as connection:
        batch = make_batch(connection, clock, lines=2)
        beat(connection, "b", {}, clock.now)
        take(connection, "a", "batch_1", "batch_1")
        lines = held(connection, "a")
        assert finish_line(connection, "a", lines[0], RESULT)
        assert not finish_line(connection, "a", lines[0], RESULT), "a second time, because the answer was lost"
        assert give_back_of_dead(connection) == 1
        assert take(connection, "b", "batch_1") == [2]
        assert not finish_line(connection, "a", lines[1], RESULT)
        assert finish_line(connection, "b", lines[1], Result(data=b"{}\n", is_output=False))
        found = find_batch(connection, "key_a", "batch_1")
        assert found is not None
        counts = found.num_completed, found.num_failed, found.prompt_tokens, found.completion_tokens
        assert counts == (1, 1, 2, 3)
        assert finish(connection, found, "completed", clock.now), "it is finalized first"
        found = find_batch(connection, "key_a", "batch_1")
        assert found is not None and found.status == "finalizing" and found.output_file_id is None
        assert finish(connection, found, "completed", clock.now)
        assert not finish(connection, batch, "completed", clock.now), "as another server would"
        done = find_batch(connection, "key_a", "batch_1")
        assert done is not None and done.output_file_id and done.error_file_id and done.completed_ms == clock.now


def test_a_line_that_ran_at_two_deaths_is_tried_alone_and_given_up_after_three_more(store: Store, clock: Clock) -> None:
    with store.begin() as connection:
        make_batch(connection, clock, lines=3)
        for _ in range(SUSPECT_LOSSES):
            assert take(connection, "dead", "batch_1", "batch_1") == [1, 2]
            give_back_of_dead(connection)
        assert claim(connection, "b", ["batch_1"], may_run_alone=False) is None, "until nothing runs here"
        for _ in range(MAX_STRIKES):
            found = claim(connection, "dead", ["batch_1"] * 3, may_run_alone=True)
            assert found is not None and [(line.number, line.is_suspect) for line in found] == [(1, True)]
            give_back_of_dead(connection)
        assert left_of(connection, "batch_1").is_struck
        assert unrun(connection, "batch_1", 9, struck=True) == [(1, b'"c1"')]
        end_unrun(connection, "batch_1", {1: b"{}\n"}, counts=True)
        assert take(connection, "dead", "batch_1", alone=True) == [2]
        batch = find_batch(connection, "key_a", "batch_1")
        assert batch is not None and batch.num_failed == 1


def test_deaths_with_other_lines_do_not_count_as_strikes(store: Store, clock: Clock) -> None:
    with store.begin() as connection:
        make_batch(connection, clock, lines=2)
        for _ in range(9):
            found = claim(connection, "dead", ["batch_1"] * 2, may_run_alone=False)
            if found is None:
                break
            give_back_of_dead(connection)
        assert {row.strikes for row in connection.execute(select(LINES.c.strikes))} == {0}


def test_lines_that_are_given_back_wait_again(store: Store, clock: Clock) -> None:
    with store.begin() as connection:
        make_batch(connection, clock, lines=3)
        beat(connection, "a", {}, clock.now)
        take(connection, "a", "batch_1", "batch_1")
        first, second = held(connection, "a")
        give_back(connection, "other", first)
        assert len(held(connection, "a")) == 2, "of another server"
        give_back(connection, "a", first)
        give_back(connection, "a", second, is_lost=True, is_strike=True)
        rows = connection.execute(select(LINES.c.losses, LINES.c.strikes, LINES.c.face).order_by(LINES.c.number))
        assert [tuple(row) for row in rows] == [(0, 0, ""), (1, 1, ""), (0, 0, "")]
        assert take(connection, "a", *["batch_1"] * 3) == [1, 2, 3]
        assert left_of(connection, "batch_1") == (False, True, False)
        connection.execute(FACES.delete())


def test_a_batch_ends_once_and_only_when_nothing_is_left(store: Store, clock: Clock) -> None:
    """Two servers may find at the same time that no line of the batch is left."""
    with store.begin() as connection:
        batch = make_batch(connection, clock, lines=2)
        take(connection, "a", "batch_1", "batch_1")
        assert not finish(connection, batch, "completed", clock.now), "lines run"
        for line in held(connection, "a"):
            assert finish_line(connection, "a", line, Result(data=b"{}\n", is_output=True))
        assert finish(connection, batch, "completed", clock.now)
        finalizing = find_batch(connection, "key_a", "batch_1")
        assert finalizing is not None and finalizing.status == "finalizing"
        assert [finish(connection, finalizing, "completed", clock.now) for _ in range(2)] == [True, False]
        assert connection.execute(select(FILES.c.bytes)).scalars().all() == [6]


def test_lines_of_the_dead_are_found_by_an_index(store: Store) -> None:
    """There are many finished lines, and this query runs twice a second."""
    if not store.is_sqlite:
        return
    asked: list[str] = []
    with store.begin() as connection:
        event.listen(connection, "before_cursor_execute", lambda *given: asked.append(given[2]))
        give_back_of_dead(connection)
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {asked[0]}", ("", RUNNING)).all()
    assert "SEARCH lines USING INDEX lines_by_face" in str(plan[0]), plan


def test_results_are_read_about_a_part_at_a_time(store: Store, clock: Clock) -> None:
    sizes = [400_000, 500_000, 300_000, 2_000_000, 10, 20]
    with store.begin() as connection:
        batch = make_batch(connection, clock, lines=len(sizes))
        take(connection, "a", *["batch_1"] * len(sizes))
        for line, size in zip(held(connection, "a"), sizes, strict=True):
            finish_line(connection, "a", line, Result(data=b"x" * size, is_output=True))
        assert finish(connection, batch, "completed", clock.now)
        finalizing = find_batch(connection, "key_a", "batch_1")
        assert finalizing is not None and finish(connection, finalizing, "completed", clock.now)
        (file,) = list_files(connection, "key_a", clock.now, 2, purpose="", after=None, newest=True)
        read, after = [], -1
        while parts := list(read_parts(connection, file, after)):
            read.append([len(data) for _, data in parts])
            after = parts[-1][0]
    assert read == [[400_000, 500_000], [300_000], [2_000_000], [10, 20]]


def test_an_id_with_a_nul_is_refused(store: Store, clock: Clock) -> None:
    with store.begin() as connection:
        assert find_file(connection, "key_a", "file-\0", clock.now) is None
        assert find_batch(connection, "key_a", "batch_\0") is None
