"""Runs that stop and go on end with the bits of runs that do not."""

import json

import pytest

from official.training import resume, run_lock
from tests.run_folders import assert_resumes, run, state_of
from tests.training.test_training import DROPOUT, make_loop, read_metrics, slow

NATIVE = dict(dtype="bf16", kernels="native", num_accumulation_steps=1)
KINDS = {
    "padded": {},
    "unpadded": dict(unpad=True),
    "packed": dict(pack_on_the_fly=True),
    "packed files": {},
    "pipeline": dict(distribution_strategy="pipeline", pipeline_stages="2", num_virtual_devices=2),
    "sgd": dict(optimizer_type="sgd", lr_schedule="cosine"),
    "momentum": dict(optimizer_type="momentum", lr_schedule="up_down", warmup_steps=2),
    "mpadamw": dict(
        optimizer_type="mpadamw", loss_scale='{"0": 64, "12": 256}', learning_rate=None, warmup_steps=None,
        lr_schedule='{"0": 1e-3, "12": 1e-2}',
    ),
    "native lamb": NATIVE,
    "native adamw": dict(NATIVE, optimizer_type="adamw"),
}  # fmt: skip
SLOW = ("packed files", "native lamb", "native adamw")


@pytest.mark.parametrize("kind", [slow(kind) if kind in SLOW else kind for kind in KINDS])
def test_a_resumed_run_is_bit_identical(
    make_config, short_files, packed_files, tmp_path, deterministic, kind
):
    """Dropout, accumulation and shuffling are on."""
    files = packed_files if kind == "packed files" else short_files
    shared = dict(deterministic, model=DROPOUT, input_files=files, num_accumulation_steps=2, do_eval=True)
    shared |= dict(steps_between_eval=5, num_eval_samples=20, checkpoint_every_steps=5)
    whole, first, second = assert_resumes(make_config, 10, 20, **{**shared, **KINDS[kind]})
    state, lines = state_of(tmp_path / "whole", 20), read_metrics(str(tmp_path / "whole"))
    lines = [line for line in lines if line["split"] == "train"]
    assert ("adam_m_scale" in state) == (kind == "mpadamw")
    if kind == "mpadamw":
        assert state["adam_m_scale"] == 64 and [line["loss_scale"] for line in lines] == [64, 64, 256, 256]
        assert [line["learning_rate"] for line in lines] == pytest.approx([1e-3, 1e-3, 1e-2, 1e-2])
    if kind.startswith("packed"):
        parts, alone = (
            json.loads((tmp_path / name / "ckpt-20.interval.json").read_text()) for name in ("parts", "whole")
        )
        assert parts == alone and parts["rows_done"] == 160
        assert sum(parts["stream_sequences"]) == whole.samples == second.samples
        assert first.samples + second.sequences_per_row * 80 == pytest.approx(whole.samples)
        written = json.loads((tmp_path / "whole" / "result.json").read_text())
        assert (
            written["sequences_per_row"] == whole.samples / 160 and 0.6 < written["packing_efficiency"] <= 1
        )


def test_a_run_that_goes_on_takes_the_loss_scale_that_is_asked_for(make_config):
    shared = dict(num_steps_per_epoch=8, steps_per_loop=4)
    run(make_config(**shared, loss_scale="1024", stop_steps=4))
    for loss_scale, expected in (("256", 256), ('{"0": 8, "3": 32}', 32)):
        config = make_config(**shared, loss_scale=loss_scale)
        loop, previous = make_loop(config), run_lock.PreviousRun(config.model_dir)
        resume.restore(config, loop.manager, loop.state, previous, loop.task, list)
        assert loop.state.step == 4 and loop.state.loss_scale.scale.numpy() == expected
