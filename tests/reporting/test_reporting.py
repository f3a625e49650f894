"""Reporting: metrics files that survive kills, progress on a terminal and in a log, results, parameters."""

import io
import json
import logging as standard_logging
import re
import types
import warnings

import numpy as np
import pytest
import tensorflow as tf
from absl import logging

from official.reporting import charts, compilations
from official.reporting import plots as plots_lib
from official.reporting import progress as progress_lib
from official.reporting import result as result_lib
from official.reporting import summary as summary_lib
from official.reporting.callback import End, Evaluation, Start
from official.reporting.metrics import MetricsWriter, read_metrics
from official.reporting.tensorboard import TensorBoard

# ------------------------------------------------------------------------------------------------------------
# metrics


END = End("finished", "", 1, 8)


def write_steps(model_dir, steps, resume_step=None):
    writers = MetricsWriter(str(model_dir), resume_step), TensorBoard(str(model_dir), resume_step)
    for step in steps:
        for writer in writers:
            writer.on_interval(step, {"samples": 8 * step, "loss": 10.0 / step, "learning_rate": 1e-3})
    for writer in writers:
        writer.on_end(END)
        writer.close()  # comes whatever happened, the end only in order


def test_a_line_holds_split_step_samples_and_the_values(tmp_path):
    """It is on the disk before the file is closed; what is not finite is null."""
    writer, path = MetricsWriter(str(tmp_path / "run")), tmp_path / "run" / "metrics.jsonl"
    values = {"loss": np.float32(0.5), "samples": np.int64(56), "mlm_accuracy": tf.constant(0.25)}
    writer.write("eval", np.int64(7), values)
    whole = '{"split": "eval", "step": 7, "samples": 56, "loss": 0.5, "mlm_accuracy": 0.25}\n'
    assert path.read_text() == whole
    numbers = {"loss": float("nan"), "a": np.float32("inf"), "b": tf.constant(-np.inf), "c": None}
    writer.write("train", 1, numbers)
    writer.close()
    record = json.loads(path.read_text().removeprefix(whole), parse_constant=pytest.fail)
    assert [record[name] for name in numbers] == [None] * 4


def test_lines_beyond_the_resumed_step_and_half_lines_go(tmp_path):
    for resume_step, steps in ((0, [9]), (2, [1, 2, 9]), (5, [1, 2, 3, 9]), (None, [1, 2, 3, 9])):
        folder = tmp_path / str(resume_step)
        write_steps(folder, [1, 2, 3])
        with open(folder / "metrics.jsonl", "ab") as file:  # whole but for its end of line
            file.write(b'{"split": "train", "step": 1}')
        write_steps(folder, [9], resume_step)
        assert [record["step"] for record in read_metrics(str(folder))] == steps


DAMAGED = r"""{} [] null \xff {"step":2} {"split":"train"} {"split":"test","step":2}
{"split":["train"],"step":2} {"split":"eval","step":"2"} {"split":"eval","step":null}
{"split":"eval","step":true}""".split()


def test_damaged_lines_are_skipped(tmp_path):
    write_steps(tmp_path, [1])
    with open(tmp_path / "metrics.jsonl", "ab") as file:
        file.writelines(line.encode("latin-1") + b"\n" for line in DAMAGED)
    assert [record["step"] for record in read_metrics(str(tmp_path))] == [1]
    assert read_metrics(str(tmp_path / "nothing.jsonl")) == []
    write_steps(tmp_path, [3], resume_step=2)
    assert len((tmp_path / "metrics.jsonl").read_bytes().splitlines()) == 2


def test_filesystems_that_do_not_append():
    folder = "ram://test_reporting/run"
    write_steps(folder, [1, 2, 3])
    writer = MetricsWriter(folder, resume_step=2)
    writer.write("eval", 3, {"loss": 1.0})
    writer.flush()
    records = read_metrics(folder + "/metrics.jsonl")
    assert [(each["split"], each["step"]) for each in records] == [("train", 1), ("train", 2), ("eval", 3)]
    writer.close()
    MetricsWriter(folder, evaluations_count=False).close()
    assert read_metrics(folder + "/metrics.jsonl") == [*records[:2], {**records[2], "split": "other_eval"}]
    assert len(tf.io.gfile.glob(folder + "/tensorboard/train/events.out.tfevents.*")) == 1


def test_tensorboard_shows_a_resumed_run_once(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    write_steps(tmp_path, [1, 2, 3, 4], resume_step=0)
    write_steps(tmp_path, [3, 6], resume_step=2)
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard" / "train")).Reload()
    assert sorted(events.Tags()["scalars"]) == ["learning_rate", "loss"]
    points = [(point.step, round(point.value, 4)) for point in events.Scalars("loss")]
    assert points == [(1, 10.0), (2, 5.0), (3, 3.3333), (6, 1.6667)]


# ------------------------------------------------------------------------------------------------------------
# progress and log lines


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def stderr(monkeypatch):
    """Returns a function that configures logging to a fake stderr, a terminal or not."""
    loggers = [standard_logging.getLogger(name) for name in (None, "absl", "tensorflow")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]

    def start(terminal=False, verbosity=0):
        stream = Terminal() if terminal else io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        progress_lib.configure_logging(verbosity)
        return stream

    with warnings.catch_warnings():
        yield start
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers


VALUES = {"loss": np.float32(7.1234), "mlm_accuracy": 0.0523, "learning_rate": 4.9e-3}
VALUES |= {"sequences_per_sec": 1412.4, "nsp_loss": 0.7}


def progress_to(last_step: int, step: int = 0) -> progress_lib.Progress:
    progress = progress_lib.Progress()
    progress.on_start(Start(step, 8 * step, last_step, (), 0.0, caches_dropped=False))
    return progress


def evaluated(**values) -> Evaluation:
    return Evaluation(1200, 9600, 16, {"samples": 9600, **values}, "mlm_accuracy", target=0.5, secs=2.0)


def lines_of(stream) -> list[str]:
    """Returns log lines without their time."""
    return [re.sub(r"^\d\d:\d\d:\d\d ", "", line) for line in stream.getvalue().splitlines()]


def test_plain_progress(stderr, monkeypatch):
    clock = iter([0.0, 0.0, 20.0, 60.0])
    monkeypatch.setattr(progress_lib.time, "monotonic", lambda: next(clock))
    stream = stderr()
    progress = progress_to(4000)
    progress.on_steps(400, VALUES)
    progress.on_steps(1200, {"loss": float("nan"), "mlm_accuracy": None, "sequences_per_sec": 0.46})
    progress.on_evaluation(evaluated(mlm_accuracy=0.25))
    progress.on_evaluation(evaluated(mlm_accuracy=float("nan")))  # an error says it
    progress.on_end(END)
    assert lines_of(stream) == [
        "step  400/4000  loss 7.1234  mlm_accuracy 0.0523  lr 4.9e-03  1,412 seq/s  left 3:00",
        # 40 s for 800 steps; the first update, with the compilation, does not count.
        "step 1200/4000  loss nan  0.46 seq/s  left 2:20",
        "Evaluation at step 1200: mlm_accuracy 0.2500 (target 0.5), 2.0 s",
    ]


def test_plain_progress_of_many_loops_stays_short(stderr, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress_lib.time, "monotonic", lambda: now[0])
    stream = stderr()
    progress = progress_to(10_000)
    for step in range(1, 10_001):
        progress.on_steps(step, {})
    assert len(stream.getvalue().splitlines()) == 101
    now[0] = 30.0
    progress.on_steps(9_950, {})  # A line after half a minute, however few the steps.
    assert len(stream.getvalue().splitlines()) == 102


@pytest.mark.parametrize("status", ["finished", "failed"])
def test_the_bar_on_a_terminal(stderr, status):
    stream = stderr(terminal=True)
    progress = progress_to(4000, 200)
    progress.on_first_step(201, 3.0)
    progress.on_steps(400, VALUES)
    progress.on_evaluation(evaluated(loss=2.0))
    logging.warning("slow disk")
    progress.on_steps(4000, VALUES)
    before = stream.getvalue()
    progress.on_end(End(status, "", 4000, 8))
    logging.info("after")
    text = stream.getvalue()
    assert "step 200/4000" in text and "step 400/4000" in text and "step 4000/4000" in text
    assert "loss 7.1234  mlm 0.0523  lr 4.9e-03  1,412 seq/s  left " in text
    for message in ("Evaluation at step 1200.*", "WARNING: slow disk", "after"):  # Each on a line of its own.
        assert re.search(rf"(^|[\r\n])\d\d:\d\d:\d\d {message}\n", text), text
    stays = "step 4000/4000" in text[len(before) :]
    assert stays == (status == "finished")


def test_log_lines(stderr):
    for verbosity, lines in (
        (1, ["debug", "100% of it", "WARNING: careful", "ERROR: wrong"]),
        (0, ["100% of it", "WARNING: careful", "ERROR: wrong"]),
        (-1, ["WARNING: careful", "ERROR: wrong"]),
    ):
        stream = stderr(terminal=verbosity < 0, verbosity=verbosity)
        progress_lib.configure_logging(verbosity)  # Twice is once.
        logging.debug("debug")
        logging.info("100%% of %s", "it")
        logging.warning("careful")
        logging.error("wrong")
        standard_logging.getLogger("tensorflow").warning("unseen")
        assert lines_of(stream) == lines
    progress = progress_to(10)  # no bar where only warnings are asked for
    progress.on_steps(10, VALUES)
    progress.on_evaluation(evaluated(loss=2.0))
    progress.close()
    assert lines_of(stream) == lines


# ------------------------------------------------------------------------------------------------------------
# result


def make_result(**changes):
    values = dict(status="success", reason="masked-LM accuracy 0.31 reached 0.30", step=400, samples=25_600)
    values |= dict(eval_accuracy=0.31, eval_loss=np.float32(2.5), target=0.3, baseline_score=0.05)
    values |= dict(sequences_per_sec=412.3, wall_secs=61.2, checkpoint="run/ckpt-400")
    return result_lib.TrainResult(**{**values, **changes})


def test_compilations_are_counted():
    """One for each shape, of functions that XLA compiles alone."""
    doubled = tf.function(lambda x: 2 * x, jit_compile=True, reduce_retracing=True)
    tripled = tf.function(lambda x: 3 * x)
    before = compilations.compilations()
    for size in (1, 2, 3, 2, 1):
        doubled(tf.zeros([size])), tripled(tf.zeros([size]))
    made = compilations.compilations().since(before)
    assert made.functions == 3 and 0 < made.secs < 60


FIELDS = """status reason step samples eval_accuracy eval_loss target target_metric majority_accuracy
majority_prediction sequences_per_sec wall_secs startup_secs first_step_secs compilations
compilation_secs peak_memory_bytes checkpoint checkpoints_written checkpoint_wait_secs
checkpoint_write_secs fresh_variables skipped_steps config environment data data_changed signal
peer_lost tables examples predictions export report evaluations sequences_per_row
packing_efficiency pipeline checks learning_rates f1"""


def test_result_file(tmp_path):
    """It replaces an older one, and holds no NaN."""
    result_lib.write_result(str(tmp_path), make_result(status="failed"))
    result = make_result(eval_loss=float("nan"), scores={"f1": 0.885}, fresh_variables=["cls/output_bias"])
    with open(result_lib.write_result(str(tmp_path), result), encoding="utf-8") as file:
        values = json.load(file, parse_constant=pytest.fail)
    assert list(values) == FIELDS.split()
    assert (values["status"], values["eval_loss"], values["f1"]) == ("success", None, 0.885)
    assert values["fresh_variables"] == ["cls/output_bias"]
    # What earlier versions predicted is no score.
    read = result_lib.from_dict({**values, "predicted_sequences_per_sec": 9.0})
    assert read.scores == {"f1": 0.885}
    path = result_lib.write_result("ram://test_reporting_result", make_result())
    assert json.loads(tf.io.gfile.GFile(path).read())["step"] == 400


def test_exit_codes():
    for code, status, more in (
        (0, "success", {}),
        (0, "finished", {}),
        (1, "aborted", {}),
        (3, "failed", {}),
        (4, "failed", {"peer_lost": True}),
        (130, "interrupted", {"signal": 2}),
    ):
        assert make_result(status=status, **more).exit_code == code
    with pytest.raises(ValueError, match="'stopped' is not one of success"):
        make_result(status="stopped")
    with pytest.raises(ValueError, match="step"):
        result_lib.result_dict(make_result(scores={"step": 1}))


# ------------------------------------------------------------------------------------------------------------
# picture


def fake_metrics(steps=400, loop=10, with_eval=True):
    random = np.random.default_rng(0)
    records = []
    for step in range(loop, steps + 1, loop):
        loss = 2 + 8 * np.exp(-3 * step / steps) + random.normal(0, 0.1)
        point = {"step": step, "samples": 64 * step}
        numbers = {"loss": loss + 0.6, "mlm_loss": loss, "nsp_loss": 0.6, "mlm_accuracy": 0.3 * step / steps}
        speed = {"learning_rate": 1e-3 * (1 - step / steps), "sequences_per_sec": 400.0}
        records.append({"split": "train", **point, **numbers, **speed})
        if with_eval and step % (10 * loop) == 0:
            numbers = {"loss": loss + 0.7, "mlm_accuracy": 0.29 * step / steps}
            records.append({"split": "eval", **point, **numbers})
    return records


NUMBERS = ("loss", "learning_rate", "sequences_per_sec")
ODD_METRICS = {
    "one point": fake_metrics(10),
    "no evaluation": fake_metrics(with_eval=False),
    "evaluation only": [record for record in fake_metrics() if record["split"] == "eval"],
    "not finite": [{**record, **dict.fromkeys(NUMBERS)} for record in fake_metrics()],
    "zeros": [{"split": "train", "step": 0, "samples": 0, **dict.fromkeys(NUMBERS, 0.0)}],
}


def save_metrics(model_dir, records):
    (model_dir / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def picture_of(records, **result):
    return charts.run_charts(records, make_result(**result))


def test_picture_of_a_run():
    rates = {"0": 0.0, "40": 2e-3, "400": 0.0, "1000": 5e-3}
    records = fake_metrics()
    records[-1]["loss"] = records[-3]["loss"] = None
    own = dict(target=0.28, baseline_prediction="the", learning_rates=rates)
    figure = plots_lib.plot_charts(picture_of(records, **own))
    axes = {each.get_title(loc="left"): each for each in figure.axes}
    legends = {title: each.get_legend_handles_labels()[1] for title, each in axes.items()}
    expected = ["train 0.296", "evaluation 0.290", "target 0.280", "always \u201cthe\u201d 0.050"]
    assert legends["Masked-LM accuracy"] == expected
    assert max(max(line.get_xdata()) for line in axes["Learning rate"].lines) == 1000
    assert legends["Learning rate"] == ["done to step 400", "still to come", "peak 5e-3 at step 1,000"]
    assert legends["Throughput"] == ["median 400"]
    loss = axes["Loss"]
    assert loss.get_xlabel() == "step of 64 sequences" and loss.get_xlim() == (0, 400)
    assert [text.split()[0] for text in legends["Loss"]] == ["masked", "next", "train", "evaluation", "not"]


def test_picture_of_odd_runs():
    for name, records in {"empty": [], **ODD_METRICS}.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            figure = plots_lib.plot_charts(picture_of(records, target=0.5))
            assert plots_lib.render(figure, "png").startswith(b"\x89PNG"), name
    prices = plots_lib.plot_charts(picture_of(fake_metrics(10), baseline_prediction="<$10% >$20"))
    assert plots_lib.render(prices, "png").startswith(b"\x89PNG")


# ------------------------------------------------------------------------------------------------------------
# parameter table


def variable(name, *shape):
    return types.SimpleNamespace(name=name + ":0", shape=shape)


def fake_variables(layers):
    variables = [variable("bert/embeddings/word_embeddings", 100, 8)]
    for layer in range(layers):
        scope = f"bert/encoder/layer_{layer}"
        for name in ("query", "key", "value"):
            own = f"{scope}/attention/self/{name}"
            variables += [variable(f"{own}/kernel", 8, 8), variable(f"{own}/bias", 8)]
        variables.append(variable(f"{scope}/output/dense/kernel", 16, 8))
        variables += [variable(f"{scope}/output/LayerNorm/{name}", 8) for name in ("gamma", "beta")]
    return variables + [variable("cls/seq_relationship/output_bias", 2), variable("step")]


def test_parameter_table_folds_only_what_is_equal_and_has_a_line_for_each_row():
    """How layers are folded is shown by the page of a training."""
    rows = summary_lib.parameter_table(fake_variables(24))
    lines = summary_lib.format_parameter_table(rows[:2]).splitlines()
    assert lines[0].split() == ["bert/embeddings/word_embeddings", "[100,", "8]", "x1", "800"]
    assert lines[-1] == "25 tensors, 2,336 parameters, 0.0 MB"
    names = {"a/layer_0/w": 4, "a/layer_1/w": 4, "a/layer_3/w": 4, "a/layer_2/w": 5, "b/pooler/w": 4, "c": 4}
    rows = summary_lib.parameter_table([variable(name, size) for name, size in names.items()])
    expected = [("a/layer_{0,1,3}/w", 3), ("a/layer_2/w", 1), ("b/pooler/w", 1), ("c", 1)]
    assert [(row.name, row.tensors) for row in rows] == expected
    real = [tf.Variable(tf.zeros([2, 3], kind), name=f"w_{kind.name}") for kind in (tf.float32, tf.float16)]
    found = [(row.name, row.bytes) for row in summary_lib.parameter_table(real)]
    assert found == [("w_float32", 24), ("w_float16", 12)]
