"""Pictures of pipelines: what is drawn, and that it is a picture."""

from official.cli import plan_pictures


def test_a_plan_is_drawn(tmp_path):
    pipeline = dict(devices=[0, 1, 0], schedule="grouped", micro_batches=600, bubble=0.25)
    pipeline["stages"] = [["embeddings", "layer_0"], ["layer_1"], ["pooler", "masked_lm", "next_sentence"]]
    pipeline["stage_flops"] = [[10, 20], [10, 20], [5, 10]]
    plan = {"strategy": "ipu", "train_steps": 10, "pipeline": pipeline, "scaling": None}
    plan_pictures.write_picture(str(tmp_path / "a.png"), plan)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    _, timeline, note = plan_pictures.schedule_of(plan)
    assert {work.micro_batch for works in timeline.works for work, *_ in works} == set(range(8))
    assert note == "8 of 600 micro batches; in all, devices wait 25.0%"
