"""One browser and one server for the tests of this folder; every test has a profile of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.checkpoints.making import write_gguf
from tests.checkpoints.tiny import tiny
from tests.playground.browser import HEADLESS, KEY
from tests.playground.proxy import Proxy
from tests.processes import served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from tests.playground.pages import Playground


TEMPLATE = (
    "{% for message in messages %}{% if message.role == 'system' %}{{ raise_exception('No <i>system</i> role') }}"
    "{% endif %}[{{ message.role }}] {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}[answer]{% endif %}"
)


@pytest.fixture(scope="session")
def site() -> Iterator[str]:
    with served("--model", "toy", model="storyteller") as url:
        yield url


@pytest.fixture
def proxy(site: str) -> Iterator[Proxy]:
    """In front of the site."""
    opened = Proxy(int(site.rpartition(":")[2]))
    yield opened
    opened.close()


@pytest.fixture(scope="package")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that requires KEY."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(KEY, encoding="utf-8")
    file.chmod(0o600)
    with served("--api-key-file", str(file), model="toy") as url:
        yield url


@pytest.fixture(scope="package")
def instruct(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model's file contains a chat template."""
    metadata, tensors = tiny("llama")
    metadata["tokenizer.chat_template"] = TEMPLATE
    path = tmp_path_factory.mktemp("instruct") / "instruct.gguf"
    write_gguf(path, metadata, tensors)
    with served("--model", str(path), model=None) as url:
        yield url


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """Chromium. It ends with this folder's tests: while Playwright runs, its event loop is that of the main thread, and
    `asyncio.run` fails in the tests of other folders."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'onward[browser]'")
    if HEADLESS is None:
        pytest.skip("needs Chromium, such as `apt-get install chromium-headless-shell`, or its path in CHROMIUM")
    with playwright.sync_playwright() as running:
        # Containers have neither a sandbox nor a large /dev/shm.
        chromium = running.chromium.launch(executable_path=HEADLESS, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield chromium
        chromium.close()


@pytest.fixture
def playground(browser: Browser, site: str) -> Iterator[Playground]:
    """The page in a new profile. After the test, no script may have failed and no other host been asked."""
    from tests.playground.pages import Playground, open_context

    context = open_context(browser)
    opened = Playground(context.new_page(), site)
    yield opened.open()
    context.close()
    assert not opened.problems
    assert all(address.startswith((site, "blob:", "data:")) for address in opened.requests)
