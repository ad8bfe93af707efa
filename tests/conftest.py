"""For all tests."""

import signal

from hypothesis import settings

settings.register_profile("random", derandomize=False)
settings.register_profile("repeatable", derandomize=True)
settings.load_profile("repeatable")


def pytest_configure() -> None:
    """Where tests run in the background (`make test &`, some build machines) interrupts are ignored, and programs
    that tests start would inherit that: Ctrl-C tests need them heard."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
