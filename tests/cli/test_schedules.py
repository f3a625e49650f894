"""Pictures of pipelines: what is drawn, and that it is a picture."""

from official.cli import plan_pictures


def plan_with(micro_batches):
    pipeline = dict(devices=[0, 1, 0], schedule="grouped", micro_batches=micro_batches, bubble=0.25)
    pipeline["stages"] = [["embeddings", "layer_0"], ["layer_1"], ["pooler", "masked_lm", "next_sentence"]]
    pipeline["stage_flops"] = [[10, 20], [10, 20], [5, 10]]
    return {"strategy": "ipu", "train_steps": 10, "pipeline": pipeline}


def test_a_plan_is_drawn(tmp_path):
    plan = {**plan_with(600), "scaling": None}
    for name, start in (("a.png", b"\x89PNG\r\n\x1a\n"), ("a.svg", b"<?xml")):
        plan_pictures.write_picture(str(tmp_path / name), plan)
        assert (tmp_path / name).read_bytes().startswith(start)
    _, timeline, note = plan_pictures.schedule_of(plan)
    assert {work.micro_batch for works in timeline.works for work, *_ in works} == set(range(8))
    assert note == "8 of 600 micro batches; in all, devices wait 25.0%"
