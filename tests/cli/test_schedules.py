"""Pictures of pipelines: what is drawn, and that it is a picture."""

from official.cli import plan_pictures


def plan_with(micro_batches):
    pipeline = dict(devices=[0, 1, 0], schedule="grouped", micro_batches=micro_batches, bubble=0.25)
    pipeline["stages"] = [["embeddings", "layer_0"], ["layer_1"], ["pooler", "masked_lm", "next_sentence"]]
    pipeline["stage_flops"] = [[10, 20], [10, 20], [5, 10]]
    return {"strategy": "ipu", "train_steps": 10, "pipeline": pipeline}


def test_a_plan_is_drawn(tmp_path, monkeypatch):
    drawn, keep = [], plan_pictures.plot_schedules
    monkeypatch.setattr(plan_pictures, "plot_schedules", lambda panels: drawn.extend(panels) or keep(panels))
    for name, start in (("a.png", b"\x89PNG\r\n\x1a\n"), ("a.svg", b"<?xml")):
        plan_pictures.write_schedule(str(tmp_path / name), plan_with(600))
        assert (tmp_path / name).read_bytes().startswith(start)
    assert {bar.number for bar in drawn[0].bars} == set(range(8))  # of 600
    assert drawn[0].note == "8 of 600 micro batches; in all, devices wait 25.0%"
