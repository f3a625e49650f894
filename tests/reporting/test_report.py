"""Pages of runs and data cards: one file, readable on a phone, from runs and data of every kind."""

import html.parser
import json
import pathlib
import re
import shutil
import tempfile

import numpy as np
import pytest

from official.reporting import charts, data_card, formats, report, verdict
from official.reporting import summary as summary_lib
from official.reporting.result import EXIT_CODES
from tests import programs
from tests.reporting.test_reporting import (
    ODD_METRICS,
    fake_metrics,
    fake_variables,
    make_result,
    save_metrics,
)

PAGES = pathlib.Path(__file__).parent / "pages"
NAMES = ("training", "evaluation", "fine_tuning", "seeds", "data_card", "prepared_text")
VOID = ("meta", "br", "img", "hr", "link", "path")  # paths of an SVG close themselves
ITEM = {
    "texts": [[["a " * 200, ""], ["w" * 200, "wrong"], [" ", ""], ["truth", "gold"]], [["why?", "strong"]]],
    "facts": [["predicted", "no & never (0.98)"], ["x" * 120, "y" * 120]],
}
EXAMPLES = [{"title": "Confident mistakes", "note": "What is <wrong>.", "items": [ITEM]}]
FACTS = json.loads((PAGES / "data_card.json").read_text(encoding="utf-8"))


class PageReader(html.parser.HTMLParser):
    """Collects tags, attributes and text, and fails on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open = [], [], "", []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        self.open += [] if tag in VOID else [tag]

    def handle_endtag(self, tag):
        assert tag in VOID or self.open.pop() == tag

    def handle_data(self, data):
        self.text += data + "\n"


def metrics_with_everything():
    records = fake_metrics(with_eval=True)
    for number, record in enumerate(records):
        if record["split"] == "train":
            record |= {"gradient_norm": 1.0 + number % 3, "loss_scale": 2.0 ** (15 - number // 20)}
            record["skipped_steps"] = int(number % 20 == 0)
    return records


def full_result(**changes):
    matrix = [["label", "predicted <a>", "predicted b"], ["a", 12, 3], ["b", 0.25, 7]]
    values = dict(baseline_prediction="the", examples=EXAMPLES, scores={"f1": 0.885})
    values |= dict(learning_rates={0: 0.0, 39: 5e-5, 400: 0.0}, tables={"Confusion matrix": matrix})
    values |= dict(environment={"commit": "abc", "versions": {"tensorflow": "2.15.1"}})
    values |= dict(data={"train": {"sha256": "0" * 64}})
    values |= dict(config={"do_train": True, "num_train_epochs": 1, "task": "pretrain"})
    return make_result(**{**values, **changes})


def write_page(model_dir, result, config=None, rows=()):
    path = report.write_report(str(model_dir), "BERT <mini>", config or {}, result, rows)
    text = pathlib.Path(path).read_text(encoding="utf-8")
    return text, PageReader(text)


def page_of(folder: pathlib.Path, name: str) -> str:
    """Returns one of the pages that stand whole in tests/reporting/pages."""
    folder.mkdir(parents=True)
    save_metrics(folder, metrics_with_everything())
    (folder / "command.txt").write_text("python train.py --model_dir='a & b' --input_files=x\n")
    settings = {"model_dir": "a & b", "learning_rate": 3e-4, "model": {"vocab_size": 1234}}
    rows, scores = summary_lib.parameter_table(fake_variables(2)), {"exact_match": 0.5, "f1": 0.6}
    if name == "data_card":
        return data_card.render(FACTS)
    if name == "prepared_text":
        manifest = {"flags": {}, "train_documents": 9, "eval_documents": 1, "short_documents": 3}
        return data_card.render({**FACTS, "records": {}, "examples": [], "manifest": manifest})
    if name == "seeds":
        for number in (1, 2):
            (folder / f"run-{number}").mkdir()
            save_metrics(folder / f"run-{number}", fake_metrics())
            (folder / f"run-{number}" / "command.txt").write_text("python train.py --num_runs=2\n")
        table = [["seed", "mlm_accuracy"], ["7", 0.31], ["8", 0.29]]
        means = {"mlm_accuracy": 0.3, "mlm_accuracy_std": 0.01}
        result = full_result(scores=means, tables={"Runs": table})
        path = report.write_repeats_report(str(folder), "BERT", result, {"7": "run-1", "8": "run-2"})
        return pathlib.Path(path).read_text(encoding="utf-8")
    changes = {}
    if name == "evaluation":
        changes = dict(config={"do_train": False}, status="finished", reason="evaluated at step 400")
    if name == "fine_tuning":
        for file in ("profile.json", "profile_memory.json"):
            shutil.copy(PAGES / file, folder)
        scores |= {"best_f1_thresh": -1.5, "HasAns_f1": 0.4, "best_step": 40}
        stages = {"stages": "a b / c", "devices": [0, 1], "schedule": "1f1b", "micro_batches": 8}
        changes = dict(scores=scores, target_metric="f1", skipped_steps=3, pipeline=stages, wall_secs=4000.0)
        changes |= dict(sequences_per_row=2.5, packing_efficiency=0.98, peak_memory_bytes=10**9)
        changes["fresh_variables"] = ["cls/output_bias"]
    own = {**settings, "do_train": name != "evaluation"}
    return write_page(folder, full_result(**changes), own, rows if name == "training" else ())[0]


def test_pages_are_those_that_people_have_read(tmp_path):
    """Rewritten by `python -m tests.reporting.test_report`; read the difference before it is committed."""
    for name in NAMES:
        expected = (PAGES / f"{name}.html").read_text(encoding="utf-8")
        assert page_of(tmp_path / name / "run", name).splitlines() == expected.splitlines(), name


@pytest.fixture(name="full")
def _full(tmp_path):
    save_metrics(tmp_path, metrics_with_everything())
    (tmp_path / "command.txt").write_text("python train.py --input_files=" + "x" * 300 + "\n")
    own = {"input_files": "x" * 200, "model": {"vocab_size": 1234}}
    return write_page(tmp_path, full_result(), own, summary_lib.parameter_table(fake_variables(2)))


def test_one_file_that_needs_no_network_and_folds_machinery_away(full):
    text, reader = full
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert not {"script", "link", "iframe", "object", "img"} & set(reader.tags)
    outside = ("src", "href", "srcset", "action", "data")
    assert not [value for name, value in reader.attributes if name in outside]
    assert len(text.encode()) < 400_000
    before = text[: text.index("<details>")]
    assert "sha256" not in before and "tensorflow" not in before and "<h1>" in before


def test_runs_of_every_status_without_metrics_and_odd_ones(tmp_path):
    names = "eval_accuracy eval_loss target baseline_score sequences_per_sec wall_secs checkpoint"
    empty = dict.fromkeys(names.split())
    for status in EXIT_CODES:
        _, reader = write_page(tmp_path, make_result(status=status, **empty))
        assert status in reader.text and "svg" not in reader.tags, status
        assert "None" not in reader.text and "nan" not in reader.text.split(), status
    for name, records in ODD_METRICS.items():
        save_metrics(tmp_path, records)
        text, _ = write_page(tmp_path, full_result())
        assert not re.search(r"nan|inf\b", "".join(re.findall(r'd="[^"]*"|style="[^"]*"', text))), name


# ------------------------------------------------------------------------------------------------------------
# Charts


def drawn(points, **settings) -> dict | None:
    kind = settings.pop("kind", "line")
    curves = [charts.Curve("c", points, "#000", kind=kind)]
    return charts.draw(charts.Chart("Loss", "nats", curves, **settings))


def test_long_curves_are_thinned_and_keep_spikes_and_gaps():
    points = [(step, 1.0 + step % 7) for step in range(50_000)]
    points[12_345], points[20_000] = (12_345, 99.0), (20_000, None)
    kept = verdict.thinned(points, 240)
    assert len(kept) <= 245 and {points[12_345], (20_000, None)} < {*kept}
    assert kept[0][0] < 10 and kept[-1] == points[-1]
    assert len(str(drawn(points, kind="faint"))) < 12_000


def test_a_few_huge_values_do_not_flatten_the_others():
    values = np.linspace(6, 2, 50).tolist()
    assert charts.vertical_range(values) == pytest.approx((0, 6.24, False))
    low, high, cut = charts.vertical_range([*values, 1e9], may_cut=True)
    assert cut and high < 20 and low == 0 and charts.vertical_range([*values, 1e9])[1] > 1e9
    assert "highest 1e9" in drawn(list(enumerate([*values, 1e9])), may_cut=True)["unit"]
    assert charts.vertical_range([5.0] * 9) == pytest.approx((0, 6.5, False))
    assert charts.vertical_range([0.0])[:2] == pytest.approx((-1.08, 1.08))


def test_what_is_not_finite_interrupts_a_line():
    points = [(0, 1.0), (1, 2.0), (2, None), (3, 1.0), (4, float("nan")), (5, 3.0), (6, 1.0)]
    (_, _, grid), (_, _, line), (_, _, dots) = drawn(points)["paths"]
    assert line.count("M") == 3 and dots.count("M") == 1  # the value between two gaps is a dot
    assert drawn([(0, None)]) is None


def test_formats():
    wrong = []
    for function, cases in {
        formats.fixed: {3e6: "3e6", 0.6431: "0.643"},
        formats.format_bytes: {999: "999 bytes", 4_142_864: "4.143 MB", 10**13: "10 TB"},
        formats.format_secs: {0: "0:00", -1: "0:00", 59.6: "1:00", 3723: "1:02:03", 200_000: "2d 7:33:20"},
        formats.format_number: {0.52: "0.52", 7.3: "7.30", 41.2: "41", 412: "412", 5120: "5,120"},
    }.items():
        wrong += [(value, text, function(value)) for value, text in cases.items() if function(value) != text]
    assert not wrong and formats.format_secs(float("inf")) == formats.format_secs(float("nan")) == "?"


def test_a_data_card_leaves_out_what_is_not_known():
    unmasked = {"records": FACTS["records"] | {"shares": FACTS["records"]["shares"] | {"masked": 0}}}
    of_others = {"manifest": {}, "texts": {}, "examples": [], "speed": {}}
    packed = {"manifest": {"flags": {}, "packs": 60, "sequences": 100, "efficiency": 0.98}}
    for changes, expected in (
        (of_others, "100 examples of 128 tokens at most"),
        (packed, "98.0%"),
        (unmasked, "100 examples"),  # without a vocabulary
    ):
        text = data_card.render(FACTS | changes)
        reader = PageReader(text)
        assert expected in reader.text and "None" not in reader.text and "nan" not in reader.text
        assert not re.findall(r"<section><h2>([^<]*)</h2>(?:<p class=\"note\">[^<]*</p>)?</section>", text)


# ------------------------------------------------------------------------------------------------------------
# In a browser


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_needs_no_sideways_scrolling(full, tmp_path, width):
    """The page, all of it unfolded, in a frame as wide as a phone; the frame's script says how wide the page
    would have to be."""
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("no chromium on this machine")
    told = "'width ' + document.documentElement.scrollWidth + ' of ' + innerWidth"
    measure = f"<script>parent.document.body.dataset.width = {told};</script></body>"
    page = full[0].replace("<details>", "<details open>").replace("</body>", measure)
    (tmp_path / "page.html").write_text(page)
    frame = f"<iframe src='page.html' style='border:0;width:{width}px;height:900px'></iframe>"
    (tmp_path / "frame.html").write_text(f"<body style='margin:0'>{frame}</body>")
    flags = (
        "headless no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-sync"
        " disable-component-update allow-file-access-from-files virtual-time-budget=2000 dump-dom"
    ).split()
    flags = [f"--user-data-dir={tmp_path / 'profile'}", *(f"--{flag}" for flag in flags)]
    address = (tmp_path / "frame.html").as_uri()
    done = programs.call(chromium, *flags, address, timeout=120, HOME=str(tmp_path))
    found = re.search(r'data-width="width (\d+) of (\d+)"', done.stdout)
    assert found, json.dumps([done.returncode, done.stdout[-300:], done.stderr[-300:]])
    assert int(found[2]) == width and int(found[1]) <= width


if __name__ == "__main__":
    for page in NAMES:
        with tempfile.TemporaryDirectory() as parent:
            (PAGES / f"{page}.html").write_text(page_of(pathlib.Path(parent) / "run", page), encoding="utf-8")
