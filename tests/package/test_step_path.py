"""The files of docs/architecture.md that a training step runs through, from the command to the optimizer."""

import re
import sys

from official.cli import train
from tests.conftest import ROOT

OFFICIAL = f"{ROOT / 'official'}/"
# Below the path: the kernels that --kernels chooses, and the devices.
_BELOW = ("modeling/operations/", "native/", "distribution/strategy.py")


def test_a_step_calls_through_the_files_of_the_page_and_no_other(tmp_path, monkeypatch):
    """And a run on other devices imports nothing of Graphcore's."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = page.split("### One training step, file by file")[1].split("###")[0]
    listed = re.findall(r"^\| `(\S+\.py)` \|", section, re.MULTILINE)
    assert len(listed) <= 15

    callers, stack = set(), []

    def trace(frame, event, _):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(OFFICIAL):
            if stack or frame.f_code.co_name == "train_loop":
                outer = frame.f_back
                while outer:
                    name = outer.f_code.co_filename
                    if name.startswith(OFFICIAL):
                        callers.add(name.removeprefix(OFFICIAL))
                    outer = outer.f_back
            if frame.f_code.co_name == "train_loop":
                stack.append(frame)
        elif event == "return" and stack and frame is stack[-1]:
            stack.pop()

    flags = [f"--bert_config_file={ROOT}/configs/models/bert_tiny.json", f"--model_dir={tmp_path}"]
    flags += "--use_synthetic_data --train_batch_size=4 --num_steps_per_epoch=1 --num_train_epochs=1".split()
    flags += "--max_seq_length=16 --max_predictions_per_seq=2 --kernels=fused".split()
    for name in [name for name in sys.modules if name.startswith("official.graphcore")]:
        monkeypatch.delitem(sys.modules, name)
    before = sys.getprofile()
    sys.setprofile(trace)
    try:
        assert train.main(flags) == 0
    finally:
        sys.setprofile(before)
    assert not [name for name in sys.modules if name.startswith("official.graphcore")]
    assert {name for name in callers if not name.startswith(_BELOW)} == set(listed)
