"""report.html: one file, readable on a phone, from runs of every kind."""

import html.parser
import json
import os
import re
import shutil
import subprocess

import numpy as np
import pytest

from official import config as config_lib
from official.reporting import charts, page, report, verdict
from official.reporting import summary as summary_lib
from official.reporting.result import EXIT_CODES
from tests.reporting.test_reporting import (
    ODD_METRICS,
    fake_metrics,
    fake_variables,
    make_result,
    save_metrics,
)

VOID = ("meta", "br", "img", "hr", "link", "path")  # paths of an SVG close themselves
EXAMPLES = [
    {
        "title": "Confident mistakes",
        "note": "What is <wrong>.",
        "items": [
            {
                "texts": [
                    [["a " * 200, ""], ["w" * 200, "wrong"], [" ", ""], ["truth", "gold"]],
                    [["why?", "strong"]],
                ],
                "facts": [["predicted", "no & never (0.98)"], ["x" * 120, "y" * 120]],
            }
        ],
    }
]


class PageReader(html.parser.HTMLParser):
    """Collects tags, attributes and text, and fails on tags that are not closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text, self.open, self.scrolling = [], [], "", [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [
            (tag, name, value, any("scroll" in classes for _, classes in self.open))
            for name, value in attributes
        ]
        if tag not in VOID:
            self.open.append((tag, (dict(attributes).get("class") or "").split()))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop()[0] == tag

    def handle_data(self, data):
        self.text += data + "\n"


def metrics_with_everything():
    records = fake_metrics(with_eval=True)
    for number, record in enumerate(records):
        if record["split"] == "train":
            record |= {
                "gradient_norm": 1.0 + number % 3,
                "loss_scale": 2.0 ** (15 - number // 20),
                "skipped_steps": int(number % 20 == 0),
            }
    return records


def full_result(**changes):
    return make_result(
        **{
            **dict(
                baseline_prediction="the",
                learning_rates={0: 0.0, 39: 5e-5, 400: 0.0},
                examples=EXAMPLES,
                scores={"f1": 0.885},
                tables={
                    "Confusion matrix": [
                        ["label", "predicted <a>", "predicted b"],
                        ["a", 12, 3],
                        ["b", 0.25, 7],
                    ]
                },
                environment={"commit": "abc", "versions": {"tensorflow": "2.15.1"}},
                data={"train": {"sha256": "0" * 64}},
                config={"do_train": True, "num_train_epochs": 1, "task": "pretrain"},
            ),
            **changes,
        }
    )


def write_page(model_dir, result, config=None, rows=()):
    path = report.write_report(str(model_dir), "BERT <mini>", config or {}, result, rows)
    with open(path, encoding="utf-8") as file:
        text = file.read()
    return text, PageReader(text)


@pytest.fixture(name="full")
def _full(tmp_path):
    save_metrics(tmp_path, metrics_with_everything())
    (tmp_path / "command.txt").write_text(
        "python train.py --model_dir='a & b' --input_files=" + "x" * 300 + "\n"
    )
    config = config_lib.build_config(
        [
            (
                "test",
                {
                    "model_dir": "a & b",
                    "input_files": "x" * 200,
                    "learning_rate": 3e-4,
                    "model": {"vocab_size": 1234},
                },
            )
        ]
    )
    return write_page(
        tmp_path, full_result(), config_lib.to_json(config), summary_lib.parameter_table(fake_variables(2))
    )


def test_one_file_that_needs_no_network(full):
    text, reader = full
    assert not re.search(r"https?:|//[a-z]|@import|url\(", text)
    assert not {"script", "link", "iframe", "object", "img"} & set(reader.tags)
    assert not [
        value
        for _, name, value, _ in reader.attributes
        if name in ("src", "href", "srcset", "action", "data")
    ]
    assert len(text.encode()) < 400_000


def test_what_it_says(full):
    for text in (
        "BERT <mini>",
        "Target reached",
        "Masked-LM accuracy 0.310 at step 400",
        "always predicting \u201cthe\u201d",
        "--model_dir='a & b'",
        "learning_rate",
        "0.0003",
        "model.vocab_size",
        "1,234",
        "0.885",
        "Confident mistakes",
        "What is <wrong>.",
        "predicted <a>",
        "0.250",
        "bert/encoder/layer_{0..1}/attention/self/{query,key,value}/kernel",
        "8 \u00d7 8",
        "5e-5 at step 39",
        "Gradient norm",
        "Loss scale",
        "Skipped steps",
        "versions.tensorflow",
        "train.sha256",
    ):
        assert text in full[1].text, text
    assert "num_accumulation_steps" not in full[1].text  # a default


def test_machinery_is_folded_away(full):
    text = full[0]
    for name in (
        "Command",
        "Settings other than the defaults",
        "Environment",
        "Data and digests",
        "Parameters: 21 tensors",
    ):
        assert f"<details><summary>{name}" in text
    before = text[: text.index("<details>")]
    assert "sha256" not in before and "tensorflow" not in before and "<h1>" in before


def test_drawings_take_the_width_they_get(full):
    drawings = {value for tag, name, value, _ in full[1].attributes if tag == "svg" and name == "width"}
    assert full[1].tags.count("svg") == 7 and drawings == {"100%"}
    boxes = [value for tag, name, value, _ in full[1].attributes if tag == "svg" and name == "viewbox"]
    assert boxes == ["0 0 1000 400"] * 7 and "vector-effect: non-scaling-stroke" in page.CSS
    assert "text" not in full[1].tags  # text in a drawing would be stretched with it


def test_nothing_is_wider_than_a_phone(full):
    """Widths in pixels; what scrolls in a frame of its own may have any."""
    widths = [
        float(width)
        for width in re.findall(r"(?<!max-)(?<!min-)(?:width|minmax\(|flex-basis)\s*:?\s*(\d+)px", page.CSS)
    ]
    inline = [
        value
        for _, name, value, scrolls in full[1].attributes
        if not scrolls and (name == "width" and value != "100%" or name == "style" and "px" in value)
    ]
    assert max(widths) <= 390 and not inline
    assert re.search(r"\.scroll \{ overflow-x: auto", page.CSS)
    tables = full[0].count("<table>")
    assert tables == full[0].count('<div class="scroll"><table>') == 2
    assert (
        "anywhere" not in re.search(r"\nth, td \{[^}]*\}", page.CSS)[0]
    )  # or a column is as narrow as a letter


@pytest.mark.parametrize("status", EXIT_CODES)
def test_every_status_without_metrics(tmp_path, status):
    empty = dict.fromkeys(
        (
            "eval_accuracy",
            "eval_loss",
            "target",
            "baseline_score",
            "sequences_per_sec",
            "wall_secs",
            "checkpoint",
        )
    )
    _, reader = write_page(tmp_path, make_result(status=status, **empty))
    assert (
        status in reader.text
        and "None" not in reader.text
        and "nan" not in reader.text.split()
        and "svg" not in reader.tags
    )


@pytest.mark.parametrize("records", ODD_METRICS.values(), ids=ODD_METRICS)
def test_odd_runs(tmp_path, records):
    save_metrics(tmp_path, records)
    text, _ = write_page(tmp_path, full_result())
    assert not re.search(r"nan|inf\b", "".join(re.findall(r'd="[^"]*"|style="[^"]*"', text)))


def test_cards_are_for_scores_that_have_names(tmp_path):
    scores = {"exact_match": 0.5, "f1": 0.6, "best_f1_thresh": -1.5, "HasAns_f1": 0.4, "best_step": 40}
    text, _ = write_page(tmp_path, full_result(scores=scores, target_metric="f1"))
    cards, rest = text[: text.index("<details>")], text[text.index("<details>") :]
    assert "F1, best evaluation, step 40" in cards and "Exact match" in cards
    assert "best_f1_thresh" not in cards and "best_f1_thresh" in rest and "HasAns_f1" in rest


def test_an_evaluation_says_whose_training_it_shows(tmp_path):
    save_metrics(tmp_path, fake_metrics())
    _, reader = write_page(
        tmp_path,
        full_result(config={"do_train": False}, status="finished", reason="evaluated at step 400"),
        {"do_train": False},
    )
    assert "Evaluated at step 400" in reader.text and "The training that the weights are from" in reader.text


def test_repeated_runs_link_to_their_reports(tmp_path):
    for number in (1, 2):
        (tmp_path / f"run-{number}").mkdir()
        save_metrics(tmp_path / f"run-{number}", fake_metrics())
        (tmp_path / f"run-{number}" / "command.txt").write_text("python train.py --num_runs=2\n")
    result = full_result(
        scores={"mlm_accuracy": 0.3, "mlm_accuracy_std": 0.01},
        tables={"Runs": [["seed", "mlm_accuracy"], ["7", 0.31], ["8", 0.29]]},
    )
    path = report.write_repeats_report(str(tmp_path), "BERT", result, {"7": "run-1", "8": "run-2"})
    with open(path, encoding="utf-8") as file:
        reader = PageReader(file.read())
    assert [value for _, name, value, _ in reader.attributes if name == "href"] == [
        "run-1/report.html",
        "run-2/report.html",
    ]
    assert (
        "0.300 \u00b1 0.010" in reader.text
        and "\u00b1 0.010 Masked-LM accuracy, mean of 2 runs" in reader.text
        and reader.text.count("seed 7") == 2
        and "--num_runs=2" in reader.text
    )


# ------------------------------------------------------------------------------------------------------------
# Charts


def test_the_learning_rate_is_the_schedule_and_says_its_peak():
    metrics = [{"split": "train", "step": step, "learning_rate": 2.94e-6} for step in range(20, 200, 20)]
    drawn = next(
        chart
        for chart in charts.run_charts(
            metrics, full_result(learning_rates={"0": 0.0, "39": 5e-5, "400": 0.0})
        )
        if "Learning rate" in chart
    )
    assert "5e-5 at step 39" in drawn and "2.94e-6" not in drawn and "still to come" in drawn
    lines = re.findall(r'd="(M[^"]*L[^"]*)"', drawn)
    assert len(lines) == 2 and lines[0].count("L") == 2  # up, down to where the run is, and what is ahead
    assert lines[0].split("L")[-1] == lines[1][1:].split("L")[0]


def test_the_loss_scale_is_shown_only_where_there_is_one():
    metrics = [
        {"split": "train", "step": step, "loss": 1.0, "loss_scale": 1.0, "skipped_steps": 0}
        for step in range(1, 9)
    ]
    assert not [
        chart
        for chart in charts.run_charts(metrics, full_result())
        if "Loss scale" in chart or "Skipped" in chart
    ]
    metrics[3] |= {"loss_scale": 2.0, "skipped_steps": 1}
    drawn = "".join(charts.run_charts(metrics, full_result()))
    assert "Loss scale" in drawn and "Skipped steps" in drawn


def test_long_curves_are_thinned_and_keep_spikes_and_gaps():
    points = [(step, 1.0 + step % 7) for step in range(50_000)]
    points[12_345], points[20_000] = (12_345, 99.0), (20_000, None)
    kept = verdict.thinned(points, 240)
    assert (
        len(kept) <= 245
        and points[12_345] in kept
        and (20_000, None) in kept
        and kept[0][0] < 10
        and kept[-1] == points[-1]
    )
    save = charts.draw(charts.Chart("t", "u", [charts.Curve("c", points, "#000", kind="faint")]))
    assert len(save) < 12_000


def test_a_few_huge_values_do_not_flatten_the_others():
    values = np.linspace(6, 2, 50).tolist()
    assert charts.vertical_range(values) == pytest.approx((0, 6.24, False))
    low, high, cut = charts.vertical_range([*values, 1e9], may_cut=True)
    assert cut and high < 20 and low == 0 and charts.vertical_range([*values, 1e9])[1] > 1e9
    assert "highest 1e9" in charts.draw(
        charts.Chart(
            "Loss", "nats", [charts.Curve("c", list(enumerate([*values, 1e9])), "#000")], may_cut=True
        )
    )
    assert charts.legend_value(3e6, 2) == "3e6" and charts.legend_value(0.6431, 2) == "0.64"
    assert charts.vertical_range([5.0] * 9) == pytest.approx((0, 6.5, False)) and charts.vertical_range(
        [0.0]
    )[:2] == pytest.approx((-1.08, 1.08))


@pytest.mark.parametrize(
    "low,high,texts",
    [
        (0, 10.2, ["0.0", "2.5", "5.0", "7.5", "10.0"]),
        (0, 0.26, ["0.0", "0.1", "0.2"]),
        (0, 5e-5, ["0", "2e-5", "4e-5"]),
        (0, 40_000, ["0", "10k", "20k", "30k", "40k"]),
        (-1, 1, ["-1.0", "-0.5", "0.0", "0.5", "1.0"]),
    ],
)
def test_ticks(low, high, texts):
    ticks = charts.nice_ticks(low, high, 4)
    assert [charts.tick_text(tick, ticks) for tick in ticks] == texts
    assert charts.nice_ticks(0, 3, 4, whole=True) == [0, 1, 2, 3]


def test_what_is_not_finite_interrupts_a_line():
    drawn = charts.draw(
        charts.Chart(
            "Loss",
            "",
            [
                charts.Curve(
                    "c",
                    [(0, 1.0), (1, 2.0), (2, None), (3, 1.0), (4, float("nan")), (5, 3.0), (6, 1.0)],
                    "#000",
                )
            ],
        )
    )
    line, dots = re.findall(r'<path class="(?:line|dots)" stroke="#000" d="([^"]*)"', drawn)
    assert line.count("M") == 3 and dots.count("M") == 1  # the value between two gaps is a dot
    assert charts.draw(charts.Chart("Loss", "", [charts.Curve("c", [(0, None)], "#000")])) == ""


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
    measure = (
        "<script>parent.document.body.dataset.width = "
        "'width ' + document.documentElement.scrollWidth + ' of ' + innerWidth;</script>"
    )
    (tmp_path / "page.html").write_text(
        full[0].replace("<details>", "<details open>").replace("</body>", measure + "</body>")
    )
    (tmp_path / "frame.html").write_text(
        "<body style='margin:0'>"
        f"<iframe src='page.html' style='border:0;width:{width}px;height:900px'></iframe></body>"
    )
    flags = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--allow-file-access-from-files",
        "--virtual-time-budget=2000",
        f"--user-data-dir={tmp_path / 'profile'}",
        "--dump-dom",
    ]
    done = subprocess.run(
        [chromium, *flags, (tmp_path / "frame.html").as_uri()],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    found = re.search(r'data-width="width (\d+) of (\d+)"', done.stdout)
    assert found, json.dumps([done.returncode, done.stdout[-300:], done.stderr[-300:]])
    assert int(found[2]) == width and int(found[1]) <= width
