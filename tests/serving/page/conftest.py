"""A browser, and a server that it asks."""

import os
import pathlib
import shutil

import pytest

from tests.conftest import ROOT
from tests.serving.page import fake_server

# axe-core, by `npm install axe-core` beside the repository; or where this variable says.
AXE_FILE = pathlib.Path(
    os.environ.get("BERT_AXE_FILE", ROOT.parent / "node_modules" / "axe-core" / "axe.min.js")
)
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


@pytest.fixture(scope="session")
def browser():
    """Chromium without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=_ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def fake():
    with fake_server.serving() as running:
        yield running


@pytest.fixture
def open_page(browser, fake):
    """Returns a function: the page in a window of its own, once it knows what the model can. All that the
    browser complains of is in `complaints`, and must be there on purpose. What axe-core finds in the state
    that the test ends in, in light and dark, must be nothing of any weight."""
    pages, complaints = [], []

    def open_it(wait_for: str = "[role=tab]", address: str = "", **settings):
        defaults = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
        context = browser.new_context(**{**defaults, **settings})
        if AXE_FILE.exists():
            context.add_init_script(script=AXE_FILE.read_text(encoding="utf-8"))
        page = context.new_page()
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.complaints = complaints
        page.set_default_timeout(20_000)
        page.goto(address or fake.address)
        page.wait_for_selector(wait_for)
        return page

    yield open_it
    found = []
    for page in pages:
        for scheme in ("light", "dark") if AXE_FILE.exists() else ():
            page.emulate_media(color_scheme=scheme)
            found += faults(page)
        page.context.close()
    assert (complaints, found) == ([], [])


def faults(page) -> list[str]:
    """Returns what axe-core, Deque's checker of accessibility, finds."""
    found = page.evaluate("async () => (await axe.run()).violations")
    return [f"{each['impact']} {each['id']}: {each['nodes'][0]['html']}" for each in found]
