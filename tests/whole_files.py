"""Workers of pytest-xdist collect a file of tests when they run it. Otherwise each of them would import all tests and
make items of them first, which takes seconds of every processor.
"""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol


class _File(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        yield _WholeFile.from_parent(self, name="all")


class _WholeFile(pytest.Item):
    """What workers are sent: all tests of a file."""

    def runtest(self) -> None:
        pass


class WholeFiles:
    """A plugin of a worker. Its items are files until they are run."""

    def pytest_pycollect_makemodule(self, module_path: Path, parent: pytest.Collector) -> pytest.File:
        return _File.from_parent(parent, path=module_path)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, object, object]:
        """Keep whole files, whatever tests are selected by their marks and names."""
        files = [item for item in items if isinstance(item, _WholeFile)]
        items[:] = [item for item in items if not isinstance(item, _WholeFile)]
        result = yield
        items += files
        return result

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
        """Collect and run the tests of a file. The fixtures of its folder and of the session stay for the next one."""
        if not isinstance(item, _WholeFile):
            return None
        session = item.session
        tests = _collect(item)
        place = session.items.index(item)
        for test, following in zip(tests, [*tests[1:], nextitem], strict=False):
            session.items[place] = test  # the worker compares it with what is reported
            item.ihook.pytest_runtest_protocol(item=test, nextitem=following)
            if session.shouldfail or session.shouldstop:
                break
        session.items[place] = item
        if not tests:
            runtestprotocol(item, log=False, nextitem=nextitem)  # for the fixtures that end here
        return True


def _collect(item: _WholeFile) -> list[pytest.Item]:
    session, file = item.session, item.parent
    assert file is not None and file.parent is not None
    gc.disable()
    try:
        tests = list(session.genitems(pytest.Module.from_parent(file.parent, path=item.path)))
        session.config.hook.pytest_collection_modifyitems(session=session, config=session.config, items=tests)
        gc.freeze()
    finally:
        gc.enable()
    return tests
