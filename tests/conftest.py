"""For all tests."""

import signal

from hypothesis import HealthCheck, settings

# A busy machine is no failure: no property test looks at the clock.
settings.register_profile("random", derandomize=False, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.load_profile("repeatable")


def pytest_configure() -> None:
    """Where tests run in the background (`make test &`, some build machines) interrupts are ignored, and hangups under
    `nohup`; programs that tests start would inherit that, and their tests need these signals heard."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
