"""The speedrun: recipes in turns, a peer with the values of ours, results that keep their history."""

import argparse
import hashlib
import io
import json
import tarfile

import pytest

import speedrun
from official.io.errors import ConfigError
from tests.refusals import assert_refused


def flags_of(tmp_path, **changed):
    given = {"work_dir": str(tmp_path), "glue_dir": None, "recipes": "2018,2026", "minutes": "30", "seeds": 2}
    return argparse.Namespace(**{**given, "seed": 1, "output": None, **changed})


def test_recipes_take_turns_seed_by_seed(tmp_path):
    recipes = "2018, 2026 mask_share=0.3,run_mlm"
    runs = speedrun.read_runs(flags_of(tmp_path, recipes=recipes, minutes="30,10,30"))
    first = [("2018", 30, 1), ("2026 mask_share=0.3", 10, 1), ("run_mlm", 30, 1), ("2018", 30, 2)]
    assert [(run.recipe, run.minutes, run.seed) for run in runs[:4]] == first
    assert len({run.folder for run in runs}) == 6


def test_refusals(tmp_path):
    cases = [
        ({"recipes": "2019"}, "Allowed: 2018, 2026, run_mlm, run_mlm_2026"),
        ({"minutes": "30,10,20"}, "one number above 0, or one of each recipe"),
        ({"minutes": "soon"}, "--minutes=soon are not numbers"),
        ({"minutes": "0"}, "above 0"),
    ]
    assert_refused(lambda changed: speedrun.read_runs(flags_of(tmp_path, **changed)), cases)


def test_the_peer_has_the_values_of_the_recipe():
    """Where one changes and the other does not, they are no longer one recipe."""
    of_training, of_records = speedrun.read_recipe("2026")
    with open(of_training[0].removeprefix("--flagfile="), encoding="utf-8") as file:
        lines = [line.strip().removeprefix("--").split("=") for line in file if line.startswith("--")]
    ours, theirs = dict(lines), speedrun._PEERS["run_mlm_2026"]
    assert "--max_seq_length=" + ours["max_seq_length"] in of_records
    names = {"warmup_share": "warmup_proportion", "decay_share": "decay_proportion"}
    for name, value in theirs.items():
        assert name in ("model", "decay") or float(ours[names.get(name, name)]) == value, name
    assert (ours["lr_schedule"], theirs["decay"]) == ("wsd_sqrt", "1-sqrt")


def test_rows_of_other_recipes_stay(tmp_path, monkeypatch):
    found = {"steps": 10, "secs": 60.0, "loss": 2.5, "accuracy": 0.5, "curve": [[10, 60.0, 3.0]]}
    found["settings"] = {}
    monkeypatch.setattr(speedrun, "measure", lambda run, flags: {**found, "glue": {"RTE": run.seed / 2}})
    monkeypatch.setattr(speedrun, "make_data", lambda folder: None)
    output = tmp_path / "speedrun"
    for recipes, minutes in (("2018", "30"), ("2026", "10"), ("2018", "30")):
        flags = flags_of(tmp_path, recipes=recipes, minutes=minutes, output=str(output))
        monkeypatch.setattr(speedrun.Main, "parse", lambda flags=flags: flags)
        speedrun.main()
    cases = json.loads((tmp_path / "speedrun.json").read_text())["cases"]
    found = [(row["recipe"], row["minutes"], row["mean_RTE"], row["step_ms"]) for row in cases]
    assert found == [("2026", 10, 0.75, 6000), ("2018", 30, 0.75, 6000)]
    assert (tmp_path / "speedrun.png").stat().st_size > 5000


def test_a_run_keeps_each_part_and_is_not_taken_for_another(tmp_path, monkeypatch):
    """A run that was killed, or that lacks a fine-tuning, does only the rest; an edited recipe is refused."""
    done = []

    def train(run, flags):
        done.append("train")
        return {"steps": 10, "secs": 60.0, "curve": [], "checkpoint": "model"}

    def score(run, checkpoint, flags):
        done.append("loss")
        if done.count("loss") == 1:
            raise KeyboardInterrupt
        return {"loss": 2.5, "accuracy": 0.5}

    monkeypatch.setattr(speedrun, "_train_ours", train)
    monkeypatch.setattr(speedrun, "_held_out_loss", score)
    monkeypatch.setattr(speedrun, "_fine_tune", lambda run, task, *_: done.append(task) or 0.5)
    flags = flags_of(tmp_path)
    run = speedrun.read_runs(flags)[0]
    with pytest.raises(KeyboardInterrupt):
        speedrun.measure(run, flags)
    assert speedrun.measure(run, flags)["glue"] == {}
    flags.glue_dir = "glue"
    found = speedrun.measure(run, flags)
    assert speedrun.measure(run, flags) == found and set(found["glue"].values()) == {0.5}
    assert done == ["train", "loss", "loss", "SST-2", "MRPC", "RTE"]
    assert "--learning_rate=5e-4" in found["settings"]["flags"]
    monkeypatch.setattr(speedrun, "read_recipe", lambda recipe, read=speedrun.read_recipe: read("2026"))
    with pytest.raises(ConfigError, match="is of another recipe"):
        speedrun.measure(run, flags)


def test_an_archive_is_that_of_its_hash(tmp_path, monkeypatch):
    packed = io.BytesIO()
    texts = {"docs/a.rst": "A page.", "docs/locale/b.rst": "Eine Seite.", "a.py": "pass", "b.c": ""}
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in texts.items():
            member = tarfile.TarInfo(f"Some_Thing-1.0/{name}")
            member.size = len(text)
            archive.addfile(member, io.BytesIO(text.encode()))
    link = b'<a href="../files/Some_Thing-1.0.tar.gz#sha256=0">'
    pages = {"some-thing/": link, ".tar.gz": packed.getvalue()}

    def urlopen(address, timeout):
        return io.BytesIO(next(page for end, page in pages.items() if address.endswith(end)))

    monkeypatch.setattr(speedrun.urllib.request, "urlopen", urlopen)
    digest = hashlib.sha256(packed.getvalue()).hexdigest()
    wrong = "Some_Thing-1.0.tar.gz --hash=sha256:" + digest[::-1]
    with pytest.raises(ConfigError, match=f"has the sha256 {digest}, expected {digest[::-1]}"):
        speedrun.fetch(wrong, str(tmp_path))
    assert not list(tmp_path.iterdir())
    speedrun.fetch(f"Some_Thing-1.0.tar.gz --hash=sha256:{digest}", str(tmp_path))
    (page,) = [path for path in tmp_path.rglob("*.*") if path.is_file()]
    assert page == tmp_path / f"some-thing-{digest[:8]}/Some_Thing-1.0/docs/a.rst"
    with pytest.raises(ConfigError, match="has no Some_Thing-2.0.tar.gz"):
        speedrun.fetch(f"Some_Thing-2.0.tar.gz --hash=sha256:{digest[::-1]}", str(tmp_path))
