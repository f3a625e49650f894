"""A browser, and the server with a stand-in for the model, which it asks."""

import os
import pathlib
import shutil

import pytest

from official.inference import Answer
from official.inference.methods import Label
from official.serving.server.versions import Served
from tests.fixtures import ROOT
from tests.serving.server.servers import StandIn, running

# axe-core, by `npm install axe-core` beside the repository; or where this variable says.
AXE_FILE = pathlib.Path(
    os.environ.get("BERT_AXE_FILE", ROOT.parent / "node_modules" / "axe-core" / "axe.min.js")
)
_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]


@pytest.fixture(scope="module")  # while it runs, no other test of this process can run an event loop
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


class PageModel(StandIn):
    """A model of several methods: it finds "Three earthquakes" in a context, and gives to every other text
    what a test tells it to.

    Attributes:
      words: (word, probability) pairs of each mask.
      scores: {name of an output: probability, or score} of each text.
      label: of each text; '' of a model whose outputs are scores.
    """

    label_names = ("negative", "positive")

    def __init__(self):
        super().__init__()
        self.words = [("france", 0.71), ("europe", 0.11), ("##land", 0.05), ("paris", 0.01), ("it", 0.001)]
        self.scores, self.label = {"negative": 0.002, "positive": 0.998}, "positive"

    def answer_all(self, asked):
        super().answer_all(asked)
        wanted = "Three earthquakes"
        starts = [context.find(wanted) for _, context in asked]
        none = Answer("", 0.61, 0, 0)
        return [Answer(wanted, 0.9371, at, at + len(wanted)) if at >= 0 else none for at in starts]

    def fill_masks(self, texts):
        return [[self.words] * text.count("[MASK]") for text in texts]

    def classify_all(self, rows):
        self.batches.append(rows)
        score = self.scores.get(self.label, next(iter(self.scores.values())))
        return [Label(self.label, score, self.scores) for _ in rows]


@pytest.fixture
def model():
    return PageModel()


@pytest.fixture
def server(model):
    def load(version: int, path: str) -> Served:
        return Served(version, model, ["answer", "classify", "fill_mask", "embed"])

    with running("nowhere", load=load) as server:
        yield server
        model.gate.set()


@pytest.fixture
def open_page(browser, server):
    """Returns a function: the page in a window of its own, once it knows what the model can. All that the
    browser complains of is in `complaints`, and must be there on purpose. What axe-core finds in the state
    that the test ends in, in light and dark, must be nothing of any weight. `asked` has the bodies of
    predictions."""
    pages, complaints, asked = [], [], []

    def open_it(wait_for: str = "[role=tab]", metadata: str = "", **settings):
        defaults = {"viewport": {"width": 1280, "height": 800}, "reduced_motion": "reduce"}
        context = browser.new_context(**{**defaults, **settings})
        if AXE_FILE.exists():
            context.add_init_script(script=AXE_FILE.read_text(encoding="utf-8"))
        page = context.new_page()
        pages.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda sent: asked.append(sent.post_data_json) if sent.method == "POST" else None)
        page.complaints, page.asked = complaints, asked
        page.set_default_timeout(20_000)
        if metadata:  # in place of the server's
            page.route("**/metadata", lambda route: route.fulfill(body=metadata))
        page.goto(f"http://127.0.0.1:{server.port}/")
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
