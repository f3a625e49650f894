"""Pictures of pipelines: what is drawn, and that it is a picture."""

import pytest

from official.cli import plan_pictures
from official.reporting import plan_figures, plots
from tests.distribution.test_pipeline_schedules import plan_of


def test_a_panel_has_a_bar_for_every_work():
    panel = plan_pictures.schedule_of(plan_of((0, 1, 0), "1f1b", 4), "GPU")
    assert panel.rows == ("GPU 0", "GPU 1") and panel.title == "1f1b"
    assert len(panel.bars) == 3 * 4 * 2 and sum(bar.is_backward for bar in panel.bars) == 12
    assert {bar.is_later for bar in panel.bars if bar.device == 1} == {False}
    assert sum(bar.is_later for bar in panel.bars) == 8  # stage 2 is the later one of device 0
    for device in (0, 1):
        own = sorted((bar.start, bar.end) for bar in panel.bars if bar.device == device)
        assert all(before[1] <= after[0] for before, after in zip(own, own[1:]))


def test_the_note_tells_the_bubble():
    assert "27.3%" in plan_pictures.schedule_of(plan_of(range(4), "gpipe", 8), "GPU").note


def plan_with(micro_batches):
    flops = [[10, 20], [10, 20], [5, 10]]
    stages = [["embeddings", "layer_0"], ["layer_1"], ["pooler", "masked_lm", "next_sentence"]]
    return {"strategy": "ipu", "train_steps": 10, "pipeline": {
        "stages": stages, "devices": [0, 1, 0], "schedule": "grouped", "micro_batches": micro_batches,
        "bubble": 0.25, "stage_flops": flops}}  # fmt: skip


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_a_plan_is_drawn(name, tmp_path, monkeypatch):
    drawn = []
    keep = plan_pictures.plot_schedules
    monkeypatch.setattr(plan_pictures, "plot_schedules", lambda panels: drawn.extend(panels) or keep(panels))
    plan_pictures.write_schedule(str(tmp_path / name), plan_with(600))
    start = (tmp_path / name).read_bytes()[:8]
    assert start == b"\x89PNG\r\n\x1a\n" if name.endswith("png") else b"<" in start
    assert {bar.number for bar in drawn[0].bars} == set(range(8))  # of 600
    assert drawn[0].note == "8 of 600 micro batches; in all, devices wait 25.0%"


def test_what_takes_longer_is_cut_off_and_says_so():
    panel = plan_pictures.schedule_of(plan_of(range(3), "sequential", 4), "IPU")
    figure = plan_figures.plot_schedules([panel], until=10)
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert "cut off: ends at 36" in texts
    assert len(plots.render(figure, "png")) > 1000
