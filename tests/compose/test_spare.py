"""The first engine's process begins to load before anything is checked, and is used only for the model that it
loads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onward.compose import compose
from onward.compose.spare import spare_process
from onward.engines.child.child import ChildEngine
from onward.engines.child.supervised import SupervisedEngine
from onward.errors import SetupError
from onward.settings import Settings
from tests.examples import slow_but
from tests.processes import is_running

TOY = Settings(model=("toy",))


def pid_of(settings: Settings, before: Settings | None = None) -> tuple[int | None, int]:
    """Return the process that was started for settings (`before`: other ones), and the engine's."""
    with spare_process(before or settings) as spare:
        assert spare is not None
        pid = spare.pid
        backend = compose(settings, own_process=True, spare=spare)
        try:
            engine = backend.served[settings.model[0]].engine
            assert isinstance(engine, SupervisedEngine)
            link = engine._session.link
            assert isinstance(link, ChildEngine)
            return pid, link.pid
        finally:
            backend.close()


CHANGES: list[dict[str, Any]] = [{}, {"max_rows": 3, "precision": "exact"}, {"alias": (("gpt", "toy"),)}]


@pytest.mark.parametrize("changes", slow_but(CHANGES[1:2], CHANGES))
def test_the_process_that_began_early_is_the_engine_of_the_first_model(changes: dict[str, Any]) -> None:
    early, engine = pid_of(replace(TOY, **changes))
    assert early == engine


@pytest.mark.slow
def test_a_process_that_began_with_another_engine_ends() -> None:
    early, engine = pid_of(TOY, replace(TOY, max_rows=3))
    assert early is not None and early != engine and not is_running(early)


def test_a_spare_process_leaves_problems_to_the_usual_checks(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    for name, words in ((str(tmp_path / "m.gguf"), "cut off"), ("nowhere", "nowhere")):
        settings = replace(TOY, model=(name,))
        with pytest.raises(SetupError, match=words), spare_process(settings) as spare:
            assert spare is not None
            compose(settings, own_process=True, spare=spare)
        assert spare is not None and spare.pid is None


@pytest.mark.parametrize("changes", [{"engine_process": "off"}, {"model": ("m=vllm+http://127.0.0.1:1",)}])
def test_without_an_engine_of_its_own_nothing_is_started(changes: dict[str, Any]) -> None:
    with spare_process(replace(TOY, **changes)) as spare:
        assert spare is None
