"""For all tests."""

import gc
import itertools
import logging
import os
import re
import signal
import ssl
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers

from onward import machine
from onward.machine import cpu_quota
from onward.settings import CONFIG_ENVIRONMENT, options

from .whole_files import EarlierReports, WholeFiles

SLOW_FILE = re.compile(r"^pytestmark = (\[\s*)?pytest\.mark\.slow", re.MULTILINE)

folder_numbers = itertools.count()

LOGGERS = [logging.getLogger(name) for name in ("onward", "uvicorn")]

# No deadlines: a busy machine must not fail a property test.
settings.register_profile("random", derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("thorough", settings.get_profile("random"), derandomize=True)
# The fast suite draws a twentieth of the examples (tests/examples.py), the same ones each time.
settings.register_profile("repeatable", settings.get_profile("thorough"), max_examples=5)
settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """The settings of the user who runs the tests do not apply to them or to servers that they start. Where tests run
    in the background (`make test &`, some build machines) interrupts are ignored, and hangups under `nohup`; programs
    that tests start would inherit that, and their tests need these signals heard."""
    openai = {name for name in os.environ if name.startswith("OPENAI_")}
    for name in {option.environment for option in options()} | {CONFIG_ENVIRONMENT} | openai:
        os.environ.pop(name, None)
    # numpy's threads spin on processors that other workers need, which took a seventh of the time of models' tests
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if config.option.markexpr == "not slow":
        _compute_on_one_thread()
        _draw_no_constants()
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(EarlierReports(config))
    else:
        _load_certificates_once()
        if not any("::" in argument for argument in config.args):
            config.pluginmanager.register(WholeFiles())


def _compute_on_one_thread() -> None:
    """Models whose threads no test has stated compute on one, whatever the processor: more would wait for each other
    on processors that other workers need, which takes as long as all that tiny models compute."""
    counted = machine.compute_threads
    patch.object(machine, "compute_threads", lambda root=None: counted(root) if root else 1).start()


def _load_certificates_once() -> None:
    """HTTP clients share the system's certificates: each would load them again, for 25 ms, to request what a server of
    the tests answers without encryption."""
    import httpcore2

    load = httpcore2.default_ssl_context

    @cache
    def context_of(trusts_environment: bool, *_: str | None) -> ssl.SSLContext:
        return load(_trust_env=trusts_environment)

    def context(*, _trust_env: bool = True) -> ssl.SSLContext:
        return context_of(_trust_env, os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR"))

    patch.object(httpcore2, "default_ssl_context", context).start()


def _draw_no_constants() -> None:
    """Property tests draw none of the constants in the modules that are imported so far: every worker would parse all
    of them, and examples would depend on the tests before."""
    if hasattr(providers, "_get_local_constants"):
        patch.object(providers, "_get_local_constants", lambda: providers._local_constants).start()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """One more worker than processors: many tests wait for timers and for processes that they start. None: what xdist
    itself chooses, by its environment variable."""
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    return (cpu_quota() or os.cpu_count() or 1) + 1


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not collect files of slow tests where only fast ones run: they import Playwright, Ray and SDKs."""
    if config.option.markexpr == "not slow" and collection_path.match("test_*.py"):
        return bool(SLOW_FILE.search(collection_path.read_text(encoding="utf-8"))) or None
    return None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """A server that a test runs in this process configures its logging. This undoes it, so that later tests do not
    write to the terminal. (A fixture would cost each test more.)"""
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in LOGGERS]
    try:
        return (yield)
    finally:
        for logger, (handlers, level, propagate) in zip(LOGGERS, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
            if logger.level != level:
                logger.setLevel(level)


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of its own for each test, as pytest's. Its numbers do not come from a look at all folders, and no link
    leads to the newest one: that took a millisecond of every other test."""
    name = re.sub(r"\W", "_", request.node.name)[:24]
    return tmp_path_factory.mktemp(f"{name}_{next(folder_numbers)}", numbered=False)


@pytest.fixture(scope="module", autouse=True)
def unclosed_files() -> Iterator[None]:
    """Objects that tests left open in reference cycles, such as clients with sockets, are errors of their own file, not
    of the test that happens to run when they are collected."""
    yield
    gc.collect()


def pytest_collection() -> None:
    gc.disable()  # until `pytest_collection_finish`: everything created meanwhile lives as long as the session


def pytest_collection_finish() -> None:
    """Tests and modules live as long as the session: no collection of garbage needs to traverse them. The others come
    less often, as each file ends with a whole one (`unclosed_files`)."""
    gc.freeze()
    gc.set_threshold(10_000)
    gc.enable()
