"""The files of docs/architecture.md that a training step runs through, from the command to the optimizer."""

import json
import re
import sys

from official.cli import train
from official.training import step
from tests.fixtures import ROOT, TINY

OFFICIAL = f"{ROOT / 'official'}/"
# Below the path: the kernels that --kernels chooses, and the devices.
_BELOW = ("modeling/operations/", "native/", "distribution/strategy.py")


def test_a_step_calls_through_the_files_of_the_page_and_no_other(tmp_path, monkeypatch):
    """And a run on other devices imports nothing of Graphcore's."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("### One training step, file by file")[1].split("###")[0]
    listed = re.findall(r"^\| `(\S+\.py)` \|", section, re.MULTILINE)
    assert len(listed) <= 15

    callers, make, before = set(), step.make_train_loop, sys.getprofile()

    def trace(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(OFFICIAL):
            while frame := frame.f_back:
                if frame.f_code.co_filename.startswith(OFFICIAL):
                    callers.add(frame.f_code.co_filename.removeprefix(OFFICIAL))

    def make_traced(*arguments):
        train_loop = make(*arguments)

        def traced(*given):
            sys.setprofile(trace)
            try:
                return train_loop(*given)
            finally:
                sys.setprofile(before)

        return traced

    monkeypatch.setattr(step, "make_train_loop", make_traced)
    (tmp_path / "model.json").write_text(json.dumps({**TINY, "num_hidden_layers": 1}))
    flags = [f"--bert_config_file={tmp_path}/model.json", f"--model_dir={tmp_path}/run"]
    flags += "--use_synthetic_data --train_batch_size=4 --num_steps_per_epoch=1 --num_train_epochs=1".split()
    flags += "--max_seq_length=16 --max_predictions_per_seq=2 --kernels=fused".split()
    for name in [name for name in sys.modules if name.startswith("official.graphcore")]:
        monkeypatch.delitem(sys.modules, name)
    assert train.main(flags) == 0
    assert not [name for name in sys.modules if name.startswith("official.graphcore")]
    assert {name for name in callers if not name.startswith(_BELOW)} == set(listed)
