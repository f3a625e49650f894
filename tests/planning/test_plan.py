"""--plan, --plan_device and --measure: exact FLOPs, built models, graphs whose memory is known, what fits,
and the update and the all-reduce of the run."""

import json
import os

import pytest
import tensorflow as tf

from official.cli import flags, train
from official.config import ConfigError
from official.config.values import DEVICE_BYTES, device_bytes
from official.optimization import plain_optimizers
from official.optimization.optimizers import make_state
from official.planning import graph_cost
from official.planning import plan as plan_lib
from official.planning.graph import FlatGraph, execution_order, peak_bytes
from official.tasks import TASKS
from official.training import step_benchmark
from tests import programs
from tests.config.test_configs import FLAGFILES, _in_repository_root, name_of  # noqa: F401
from tests.fixtures import ROOT, TINY, slow
from tests.refusals import assert_refused
from tests.training.test_training import make_loop, replicas


def plan_of(config) -> dict:
    return plan_lib.make_plan(config, TASKS[config.task])


def planned(*arguments) -> dict:
    return plan_of(flags.parse([*arguments, "--plan"]))


SLOW_BUT_ONE = [path if path.stem == "quickstart" else slow(path) for path in FLAGFILES]


@pytest.mark.parametrize("path", SLOW_BUT_ONE, ids=name_of)
def test_every_flagfile_plans(path, tmp_path):
    # Those of the data, which are not here.
    steps = [] if "--num_steps_per_epoch" in path.read_text() else ["--num_steps_per_epoch=100"]
    plan = planned(f"--flagfile={path}", f"--model_dir={tmp_path}/run", *steps)
    assert plan["bytes"]["parameters"] == 4 * plan["parameters"]
    assert all(size > 0 or name == "weight_copies" for name, size in plan["bytes"].items())
    # Fine-tuning asks for --do_eval on its command line.
    assert plan["eval_steps"][-1:] == ([] if steps else [plan["train_steps"]])
    assert not os.listdir(tmp_path)
    assert f"{plan['parameters']:,}" in plan_lib.describe(plan)


@pytest.mark.slow
def test_published_flops():
    """The published count has all vectors of the last block; half a thousandth of leeway is for its way of
    gathering the masked tokens."""
    shared = "--bert_config_file=configs/models/bert_base.json --model_dir=m"
    shared += " --use_synthetic_data --num_gpus=0"
    for length, predictions, batch, gigaflops in ((128, 20, 8, 559.5), (512, 76, 2, 601.9)):
        sizes = [f"--max_seq_length={length}", f"--max_predictions_per_seq={predictions}"]
        sizes += [f"--train_batch_size={batch}"]
        unread, hidden = batch * (length - predictions - 1), 768
        left_out = 3 * unread * 2 * (2 * hidden * hidden + 2 * hidden * 4 * hidden + 2 * length * hidden)
        found = (planned(*shared.split(), *sizes)["flops_per_step"] + left_out) / 1e9
        assert found == pytest.approx(gigaflops, rel=5e-4)


@pytest.mark.parametrize("accumulation, count", [(2, 2), slow(1, 1), slow(4, 1)])
def test_flops_of_a_formula(make_config, accumulation, count):
    two = {"num_hidden_layers": 2}
    config = make_config(two)
    model, tokens, masked = config.model, 8 * 16, 8 * 3
    hidden, inner = model.hidden_size, model.intermediate_size
    block = tokens * (4 * hidden * hidden + 2 * hidden * inner) + 2 * 8 * 16 * 16 * hidden
    # The last block has keys and values of all tokens, and all else of the vectors that heads read.
    read = 3 + 1
    last = tokens * 2 * hidden * hidden + 8 * read * (2 * hidden * hidden + 2 * hidden * inner)
    last += 2 * 8 * read * 16 * hidden
    head = masked * (hidden * hidden + hidden * model.vocab_size) + 8 * (hidden * hidden + 2 * hidden)
    segments = tokens * model.type_vocab_size * hidden  # the ids have no gradient: one product less
    expected = 2 * (3 * ((model.num_hidden_layers - 1) * block + last + head) + 2 * segments)
    config = make_config(two, num_accumulation_steps=accumulation, **replicas(count))
    assert plan_of(config)["flops_per_step"] == expected


@pytest.mark.parametrize("optimizer_type", ["lamb", slow("adamw")])
def test_sizes_are_those_of_a_built_model(make_config, optimizer_type):
    config = make_config(optimizer_type=optimizer_type)
    state = make_state(config, TASKS[config.task](config).build_model, tf.distribute.get_strategy())
    variables = state.model.trainable_variables
    slots = plain_optimizers.slot_variables(state.optimizer, optimizer_type, variables).values()
    own, kept = (sum(each.numpy().nbytes for each in group) for group in (variables, slots))
    plan = plan_of(config)
    assert plan["tensors"] == len(variables)
    assert plan["bytes"]["parameters"] == plan["bytes"]["gradients"] == own
    assert plan["bytes"]["optimizer_slots"] == kept


@pytest.mark.slow
def test_runs_that_are_no_number_of_like_steps(make_config):
    several = dict(num_accumulation_steps=4, do_eval=True, steps_between_eval=5)
    plan = plan_of(make_config(batch_warmup='{"0": 1, "3": 2, "10": 4}', **several))
    assert plan["batch_warmup"] == {"0": 2, "3": 4, "10": 8}
    assert plan["train_rows"] == 3 * 2 + 7 * 4 + 10 * 8
    assert plan["eval_samples_seen"] == {"5": 14, "10": 34, "15": 74, "20": 114}
    assert "2 from step 0, 4 from step 3, 8 from step 10" in plan_lib.describe(plan)

    wsd = dict(num_steps_per_epoch=None, num_train_epochs=None, lr_schedule="wsd_linear")
    plan = plan_of(make_config(budget_hours=2, decay_proportion=0.25, warmup_steps=None, **wsd))
    assert plan["train_steps"] is None and plan["eval_steps"] == []
    assert plan["learning_rates"] == pytest.approx({"0": 0, "0.2": 0.01, "1": 0.01, "1.5": 0.01, "2": 0})
    assert "as many as fit into 2 hours" in plan_lib.describe(plan)

    plan = plan_of(make_config(decay_checkpoint="a/ckpt-30", decay_steps=10, **wsd))
    assert (plan["first_step"], plan["train_steps"], plan["train_rows"]) == (30, 40, 80)
    assert plan["learning_rates"] == pytest.approx({"30": 0.01, "35": 0.005, "39": 0.001})
    assert "10 after the 30 of the checkpoint" in plan_lib.describe(plan)


def flat_graph(build) -> tuple[FlatGraph, list[int]]:
    """Returns the flat graph of what `build` makes from a placeholder of 1000 floats, and the number of its
    result."""
    with tf.Graph().as_default() as graph:
        result = build(tf.compat.v1.placeholder(tf.float32, [1000]))
        flat = FlatGraph()
        flat.add(graph, graph.get_operations())
    return flat, [flat.numbers[result.name]]


def peak_of(build) -> float:
    """Returns the most floats of a graph that live at once."""
    flat, kept = flat_graph(build)
    return peak_bytes(flat, execution_order(flat, kept), kept) / 4


def keep_two(x):
    first = tf.sin(x)  # lives on to the sum; the cosine is new, its tanh and the sum are in place
    return first + tf.reshape(tf.tanh(tf.cos(first)), [1000])


def call_twice(x):
    square_root = tf.function(lambda value: tf.sqrt(tf.sin(value)))
    return square_root(square_root(x))


def loop(x, add=tf.sin, shape=(1000,)):
    return tf.while_loop(
        lambda index, _: index < 3,
        lambda index, total: (index + 1, total + add(x)),
        (0, tf.zeros(shape)),
        maximum_iterations=3,
    )[1]


def hold_until_the_end(x):
    @tf.function(experimental_attributes={"_noinline": True})
    def call(value):
        return tf.reduce_sum(tf.cos(tf.reshape(tf.sin(value), [1000])))

    return call(tf.exp(x))


def compile_together(x):
    @tf.function(jit_compile=True)
    def compiled(value):
        return tf.cos(tf.cos(tf.sin(value))) + value

    return compiled(tf.sin(x))


def of_nothing_else(x):
    tf.sin(tf.concat([x] * 5, 0))  # what is not needed does not live
    return tf.cos(x)


def test_peak_of_small_graphs():
    for build, floats in (
        (hold_until_the_end, 3000),  # the argument, the sine and the cosine
        (compile_together, 2000),  # the argument and the result: what is between is in no memory
        # The first cosine lives on under another name.
        (lambda x: tf.cos(tf.identity_n([tf.reduce_sum(x), tf.cos(x)])[1]), 2000),
        (tf.sin, 1000),
        (lambda x: tf.tanh(tf.sin(x)), 1000),
        (lambda x: tf.cos(tf.sin(x)), 2000),
        (keep_two, 2000),
        (lambda x: tf.reduce_sum(tf.sin(x)), 1001),
        (call_twice, 2000),
        (lambda x: tf.cast(tf.cast(tf.sin(x), tf.bfloat16), tf.float32), 1500),
        (of_nothing_else, 1000),
    ):
        assert peak_of(build) == floats, build
    # Of a loop, one round: the total and what is added to it; the counters are a few bytes.
    assert 2000 <= peak_of(loop) < 2100


def test_products_in_functions_and_loops_count():
    def build(x):
        product = tf.function(lambda left: tf.matmul(left, left, transpose_b=True))
        return loop(tf.reshape(x, [20, 50]), product, (20, 20))

    assert flat_graph(build)[0].flops() == 3 * 2 * 20 * 20 * 50


def test_expected_time_and_steps_and_rates_at_the_corners(make_config):
    settings = dict(do_eval=True, num_eval_samples=16, steps_between_eval=10, steps_before_eval_start=10)
    settings |= dict(warmup_steps=5, learning_rate=1.0, decay_from="warmup_end")
    plan = plan_of(make_config(**replicas(4), **settings, plan=True, plan_tflops=1e-6, plan_gbps=1e-3))
    assert plan["eval_steps"] == [10, 20] and plan["eval_samples_seen"] == {"10": 80, "20": 160}
    rates = {"0": 0.0, "4": 0.8, "5": 1.0, "10": 2 / 3, "19": 1 / 15}
    assert plan["learning_rates"] == pytest.approx(rates)
    times = plan["expected"]
    assert times["matmul_secs"] == pytest.approx(plan["flops_per_step"] / 4 / 1e6)
    assert times["all_reduce_secs"] == pytest.approx(1.5 * plan["bytes"]["gradients"] / 1e6)
    assert times["step_secs"] == pytest.approx(times["matmul_secs"] + times["all_reduce_secs"])
    assert times["eval_secs"] == pytest.approx(2 * 16 / 8 * times["matmul_secs"] / 3)
    assert times["total_secs"] == pytest.approx(20 * times["step_secs"] + times["eval_secs"])
    text = plan_lib.describe(plan)
    assert "sequences/s" in text and "all-reduce" in text


PACKED = dict(average_sequences_per_pack=2.5, max_sequences_per_pack=4)


def test_packed_rows_are_counted_in_sequences(make_config):
    settings = dict(do_eval=True, num_eval_samples=30, steps_between_eval=10, plan=True, plan_tflops=1e-6)
    plain = plan_of(make_config(**settings))
    told = ("sequences_per_step", "sequences_per_row", "packing_speedup", "train_rows", "train_sequences")
    assert [plain[name] for name in told] == [8, 1, 1, 160, 160] and plain["train_records_read"] == 160
    text = plan_lib.describe(plain)
    assert "8 sequences = 1 replicas x 8" in text and "rows" not in text and "160 records" in text
    on_the_fly, files = dict(PACKED, pack_on_the_fly=True), dict(PACKED, input_files="packed/*")
    for packed, read, how in (
        ({**on_the_fly, **files}, 400, "while they are read"),
        (files, 160, "before"),
    ):
        plan = plan_of(make_config(**packed, **settings))
        assert plan["global_batch_size"] == plan["replica_batch_size"] == plan["micro_batch_size"] == 8
        found = [plan[name] for name in (*told, "train_records_read")]
        assert found == [20, 2.5, 2.5, 160, 400, read]
        assert plan["eval_samples_seen"] == {"10": 200, "20": 400}
        times = plan["expected"]
        assert times["sequences_per_sec"] == pytest.approx(20 / times["step_secs"])
        assert times["eval_secs"] == pytest.approx(2 * 30 / 20 * times["matmul_secs"] / 3)
        # Slots for 3 + 4 - 1 predicted tokens and 4 [CLS] of a row, against 3 and 1.
        assert plan["flops_per_step"] > plain["flops_per_step"]
        assert f"about 400 sequences in 160 rows, packed {how}" in plan_lib.describe(plan)


FINE_TUNING = dict(use_synthetic_data=False, plan=True, max_predictions_per_seq=20, max_seq_length=32)
SQUAD = dict(task="squad", **FINE_TUNING)
GLUE = dict(task="glue", glue_task="rte", data_dir="d", **FINE_TUNING)
POSITIONS = {"max_position_embeddings": 32}


@pytest.mark.slow
def test_packed_fine_tuning_is_planned_without_its_data(make_config):
    for settings in (SQUAD, GLUE):
        plan = plan_of(make_config(POSITIONS, pack=True, **PACKED, **settings))
        assert (plan["sequences_per_step"], plan["sequences_per_row"]) == (20, 2.5)
        assert plan["train_records_read"] == plan["train_sequences"] == 400


@pytest.mark.slow
def test_a_run_without_training_is_planned_by_its_batches(make_config):
    for settings in (
        dict(do_eval=True),
        dict(do_predict=True, predict_file="x", **SQUAD),
        dict(do_eval=True, pack=True, **GLUE),
    ):
        own = dict(do_train=False, eval_batch_size=8, init_checkpoint="x")
        plan = plan_of(make_config(POSITIONS, **own, **settings))
        trained = plan_of(make_config(POSITIONS, **settings))
        assert plan["parameters"] == trained["parameters"]
        assert plan["global_batch_size"] == plan["replica_batch_size"] == 8
        assert (plan["train_steps"], plan["eval_steps"], plan["learning_rates"]) == (0, [], {})
        assert (plan["bytes"]["gradients"], plan["bytes"]["optimizer_slots"]) == (0, 0)
        assert 0 < plan["bytes"]["activations"] < trained["bytes"]["activations"]
        # The backward pass has two products for each of the forward pass, but for the first.
        per_row = trained["flops_per_step"] / trained["global_batch_size"] / (plan["flops_per_step"] / 8)
        assert 2.5 < per_row <= 3
        text = plan_lib.describe(plan)
        assert "none: evaluation or prediction only" in text and "of a batch" in text and "slots" not in text


def test_steps_that_only_the_data_say(make_config):
    settings = dict(do_eval=True, plan_tflops=1.0, **SQUAD)
    plan, known = (plan_of(make_config(POSITIONS, num_steps_per_epoch=n, **settings)) for n in (None, 100))
    assert (plan["train_steps"], known["train_steps"]) == (None, 100)
    for name in ("parameters", "flops_per_step", "bytes", "global_batch_size"):
        assert plan[name] == known[name]
    assert plan["expected"]["step_secs"] == known["expected"]["step_secs"]
    assert "--num_steps_per_epoch=N sets them" in plan_lib.describe(plan)


@pytest.mark.slow
def test_a_run_that_is_laid_out_for_several_is_planned_as_it_is_dealt_out(make_config):
    several = plan_of(make_config(train_batch_size=48, logical_workers=4))
    alone = plan_of(make_config(train_batch_size=48, num_accumulation_steps=4))
    assert several == alone and several["micro_batch_size"] == 12


def test_what_cannot_be_planned(make_config):
    cases = [
        (dict(distribution_strategy="tpu", tpu="somewhere", train_batch_size=12), "Nearest valid: 8 or 16"),
        (dict(num_virtual_devices=3, distribution_strategy="mirrored"), "Nearest valid: 6 or 9"),
    ]
    assert_refused(lambda settings: plan_of(make_config(**settings)), cases)
    config = make_config(plan=True, plan_file="/dev/null/plan.json")
    with pytest.raises(ConfigError, match="--plan_file=/dev/null/plan.json: Not a directory"):
        plan_lib.run(config, TASKS[config.task])


def test_a_checkpoint_that_is_written_beside_the_training_is_a_copy(make_config, monkeypatch):
    monkeypatch.setattr(graph_cost.native, "uses_gpus", lambda config: False)
    for beside in (True, False):
        plan = plan_of(make_config(plan=True, num_steps_per_epoch=20, async_checkpoints=beside))
        assert (plan["checkpoint_copy_bytes"] > 0) == beside
        assert ("from a copy in the host's memory" in plan_lib.describe(plan)) == beside


def test_files_of_each_host(make_config):
    """Of workers that share a layout's micro batches, each host reads those of the workers it computes."""

    def read(files, **settings):
        shared = dict(use_synthetic_data=False, input_files=files, train_batch_size=64)
        config = make_config(**{**shared, **settings})
        return plan_lib.planned_files(config, plan_lib.planned_batches(config)[1])

    hosts = dict(distribution_strategy="multi_worker_mirrored", worker_hosts="a:1,b:1,c:1,d:1", task_index=0)
    files = "part@64.tfrecord"
    assert read(files, **hosts) == {"files": 64, "streams": 32, "hosts": 4, "files_per_host": 16}
    asked = read(files, data_streams=64, **hosts)
    assert asked["streams"] == 64 and asked["files_per_host"] == 16
    assert read(files)["files_per_host"] == 64
    assert read(files, logical_workers=8, **hosts)["files_per_host"] == 16
    assert read(files, logical_workers=2, num_accumulation_steps=2, **hosts)["files_per_host"] == 32
    cases = [("part@32.tfrecord", 64, "32 files for 64"), ("part@3.tfrecord", None, "3 files for 4 hosts")]
    assert_refused(lambda files, workers: read(files, logical_workers=workers, **hosts), cases)
    assert read("nowhere/*") is None and read("gs://bucket/part-*") is None
    assert read(None, use_synthetic_data=True) is None


@pytest.mark.slow
def test_the_estimate_is_near_a_real_step():
    done = programs.run("benchmarks/memory.py", "--cases=5", timeout=900)
    assert done.returncode == 0, done.stderr
    error = float(done.stdout.split()[-2].rstrip("%"))
    assert abs(error) < 20, done.stdout


def test_bytes_of_a_device():
    cases = {"v100-16gb": 16 * 10**9, "TPU-v3-core": 16 * 2**30, "ipu-mk2": 900 * 10**6, "16e9": 16 * 10**9}
    cases |= {"16000000000": 16 * 10**9, "16GB": 16 * 10**9, "1.5 GiB": 3 * 2**29}
    assert {text: device_bytes(text) for text in cases} == cases
    wrong, told = ("v100", "16 gigs", "-3", "0", "nan", "inf", "1e99", "", "GB"), ", ".join(DEVICE_BYTES)
    assert_refused(device_bytes, [(text, f"is not one of {told}.*--plan_device") for text in wrong])


# Bytes of a made-up run: of each --recompute, for a micro batch of 12 rows; they shrink with it.
_BYTES = {"none": 1200, "attention": 600, "block": 120}


def change_of(make_config, limit, **settings):
    config = make_config(plan=True, plan_device=str(limit), train_batch_size=12, **settings)
    asked = []

    def bytes_with(changed):
        asked.append((changed.recompute, changed.num_accumulation_steps))
        return [_BYTES[changed.recompute] // changed.num_accumulation_steps]

    return plan_lib.capacity(config, 12, bytes_with(config), bytes_with), asked


def test_the_smallest_change_that_fits(make_config):
    for limit, fits, fits_with in (
        (1200, True, None),
        (1199, False, "--recompute=attention"),
        (600, False, "--recompute=attention"),
        (599, False, "--recompute=block"),
        (119, False, "--recompute=block --num_accumulation_steps=2"),
        (25, False, "--recompute=block --num_accumulation_steps=6"),
        (9, False, None),
    ):
        found, asked = change_of(make_config, limit)
        assert (found["fits"], found["fits_with"]) == (fits, fits_with)
        assert found["bytes_per_device"] == [1200] and found["device_bytes"] == limit
        assert len(asked) == 1 if fits else asked[-1] != ("none", 1)
    found, _ = change_of(make_config, 40, recompute="block")  # it can only accumulate
    assert found["fits_with"] == "--num_accumulation_steps=3"


def test_the_page_says_whether_it_fits(make_config, tmp_path):
    plan = plan_of(make_config())
    assert plan["fits"] is None and plan["bytes_per_device"] == [plan["total_bytes"]]
    text = plan_lib.describe(plan)
    assert " fit" not in text and plan["pipeline"] is None and "Pipeline" not in text
    path = tmp_path / "plan.json"
    settings = {"plan": True, "plan_file": str(path)}
    text = plan_lib.run(make_config(plan_device="1GB", **settings), TASKS["pretrain"])
    assert "it fits" in text and json.loads(path.read_text())["fits"] is True
    # A byte too little: the first change that keeps less is enough.
    less = make_config(plan_device=str(plan["total_bytes"] - 1), **settings)
    text, told = plan_lib.run(less, TASKS["pretrain"]), json.loads(path.read_text())
    assert "WARNING" in text and "does not fit" in text and told["fits"] is False
    assert told["fits_with"] == "--recompute=attention" and told["fits_with"] in text
    explained = (ROOT / "docs" / "plan.md").read_text(encoding="utf-8").split("## plan.json")[1]
    assert [key for key in json.loads(path.read_text()) if f"`{key}`" not in explained] == []
    again = flags.parse([f"--config={path}", "--plan"])  # its settings are those of the run
    assert again.max_seq_length == less.max_seq_length and again.model == less.model
    # An evaluation has nothing to compute again.
    plan = plan_of(make_config(plan=True, plan_device="1000", do_train=False, do_eval=True))
    assert plan["fits"] is False and plan["fits_with"] is None


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v100", "v100_logs", "tpu_v3_32", "tpu_v3_32_logs"])
def test_the_mlperf_recipes_fit_their_devices(name):
    device = "v100-16gb" if "v100" in name else "tpu-v3-core"
    words = [f"--flagfile=configs/mlperf_{name}.flags", f"--plan_device={device}"]
    plan = planned(*words)
    assert plan["fits"] and plan["fits_with"] is None
    if plan["recompute"] != "none":  # no more than it needs
        less = planned(*words, "--recompute=none")
        assert not less["fits"] and less["fits_with"] == f"--recompute={plan['recompute']}"


def test_ipus_are_told_no_change_that_they_do_not_take(make_config):
    pipeline = dict(distribution_strategy="ipu", pipeline_stages="emb / hid*2 / mlm+nsp", loss_scale="1")
    batch = dict(train_batch_size=36, num_accumulation_steps=6, max_predictions_per_seq=2)
    config = make_config({"num_hidden_layers": 2}, **pipeline, **batch, plan=True, plan_device="1000")

    def bytes_with(changed):
        assert changed.recompute != "attention"
        if changed.num_accumulation_steps % 6:
            raise ConfigError("a grouped pipeline takes multiples of 6")
        return [500 if changed.num_accumulation_steps == 36 else 2000]

    found = plan_lib.capacity(config, 36, [2000], bytes_with)
    assert found["fits_with"] == "--recompute=block --num_accumulation_steps=36"


def test_the_hours_of_a_run_are_those_of_its_steps(make_config):
    config = make_config(plan=True, measure=True, do_eval=True, num_eval_samples=16)
    plan = plan_lib.make_plan(config, TASKS["pretrain"], lambda *_: [7.0, 2.0, 3.0])
    measured = plan["measured"]
    assert (measured["steps"], measured["step_secs"]) == (3, 3.0)
    assert measured["sequences_per_sec"] == pytest.approx(8 / 3)
    assert measured["train_secs"] == pytest.approx(20 * 3)
    # An evaluation is forward passes, each a third of a step.
    assert measured["eval_secs"] == pytest.approx(len(plan["eval_steps"]) * 16 / 8 * 3 / 3)
    assert measured["total_secs"] == measured["train_secs"] + measured["eval_secs"]
    assert measured["hours"] == pytest.approx(measured["total_secs"] / 3600)
    text = plan_lib.describe(plan)
    assert "not known" not in text
    for told in ("measured step", "3 s, the median of 3", "2.667 sequences/s", "training 60.0 s"):
        assert told in text, told
    assert json.loads(json.dumps(plan)) == plan
    plan = plan_lib.make_plan(make_config(plan=True), TASKS["pretrain"], lambda *_: pytest.fail("it ran"))
    assert plan["measured"] is None and "--measure runs three steps here" in plan_lib.describe(plan)


@pytest.mark.slow
def test_real_steps_of_every_task_are_run_without_data(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tmp_path / "model.json"
    model.write_text(json.dumps({**TINY, "num_hidden_layers": 1}))
    steps = []
    own = step_benchmark.make_step

    def noted(*arguments):
        run = own(*arguments)
        return lambda: steps.append(run())

    monkeypatch.setattr(step_benchmark, "make_step", noted)
    shared = [f"--bert_config_file={model}", "--max_seq_length=32", "--distribution_strategy=one_device"]
    shared += ["--plan", "--measure", "--num_gpus=0", "--kernels=plain"]
    for task in (
        ["--input_files=none.tfrecord", "--train_batch_size=4", "--pack_on_the_fly"],
        ["--task=squad", "--train_file=none.json", "--predict_file=none.json", "--train_batch_size=4"],
        ["--task=glue", "--glue_task=sst2", "--data_dir=none", "--train_batch_size=4"],
    ):
        steps.clear()
        config = flags.parse([*shared, *task])
        plan = plan_lib.make_plan(config, TASKS[config.task], step_benchmark.measure_steps)
        assert len(steps) == 4 and plan["measured"]["step_secs"] > 0, task
        # Only the data of fine-tuning say how many steps it has.
        known = config.task == "pretrain"
        assert (plan["measured"]["hours"] is not None) == (plan["train_steps"] is not None) == known
        assert all(0 < loss < 100 for loss in steps), task
    assert os.listdir(tmp_path) == ["model.json"]


@pytest.mark.slow
def test_the_program_measures_on_the_devices_of_the_run(tmp_path, capsys):
    model, file = tmp_path / "model.json", tmp_path / "plan.json"
    model.write_text(json.dumps(TINY))
    command = f"""--plan --measure --bert_config_file={model} --use_synthetic_data --max_seq_length=16
        --max_predictions_per_seq=3 --train_batch_size=8 --distribution_strategy=mirrored
        --num_virtual_devices=2 --all_reduce_alg=hierarchical_copy --plan_hosts=1,2 --plan_gbps=10
        --plan_file={file} --num_steps_per_epoch=9"""
    assert train.main(command.split()) == 0
    plan = json.loads(file.read_text())
    assert plan["num_replicas"] == 2 and plan["scaling"]["source"] == "measure"
    assert "measured run" in capsys.readouterr().out
    assert sorted(os.listdir(tmp_path)) == ["model.json", "plan.json"]


# ------------------------------------------------------------------------------------------------------------
# The update and the all-reduce of the run


@pytest.mark.slow
def test_copies_and_narrow_gradients_of_a_plan_are_those_of_the_run(make_config):
    sizes = {}
    for name, settings in (
        ("fp32", {}),
        ("bf16", dict(dtype="bf16")),
        ("two", dict(dtype="bf16", **replicas(2))),
        ("added up", dict(dtype="bf16", num_accumulation_steps=2)),
        ("tensorflow", dict(dtype="bf16", kernels="fused")),
        ("fp16", dict(dtype="fp16")),
    ):
        plan = plan_of(make_config(num_gpus=0, **settings))
        assert plan["total_bytes"] == sum(plan["bytes"].values())
        assert tf.keras.mixed_precision.global_policy().name == "float32"  # put back
        sizes[name] = plan["bytes"]
    for name in ("bf16", "tensorflow", "fp16"):
        assert sizes[name]["activations"] < sizes["fp32"]["activations"]
        assert sizes[name]["parameters"] == sizes["fp32"]["parameters"]
    loop = make_loop(make_config(num_gpus=0, dtype="bf16"))
    copies = loop.state.optimizer.make_copies([], tf.bfloat16)
    copied = sum(each.numpy().nbytes for each in copies.values())
    assert sizes["bf16"]["weight_copies"] == sizes["two"]["weight_copies"] == copied > 0
    assert sizes["fp16"]["weight_copies"] == copied
    assert sizes["fp32"]["weight_copies"] == sizes["tensorflow"]["weight_copies"] == 0
    parameters = sizes["fp32"]["parameters"]
    for name in ("fp32", "two", "added up", "tensorflow"):
        assert sizes[name]["gradients"] == parameters, name
    # The table's gradient is float32, since it is added up; others are those of the copies.
    table = 2 * loop.state.model.encoder.word_embeddings.shape.num_elements()
    assert sizes["bf16"]["gradients"] == parameters - copied + table


def test_a_plan_takes_the_native_update_on_cpus(make_config, monkeypatch):
    for settings, device, expected in (
        ({}, "CPU", True),
        ({}, "GPU", False),
        (dict(plan_device="v100-16gb"), "CPU", False),
        (dict(plan_device="16GB"), "CPU", True),
        (dict(enable_xla=True), "CPU", False),
        (dict(distribution_strategy="tpu", num_tpu_cores=8, num_gpus=None), "CPU", False),
    ):
        monkeypatch.setattr(graph_cost.native, "uses_gpus", lambda config, device=device: device == "GPU")
        config = make_config(**{"num_gpus": 0, "plan": True, **settings})
        assert graph_cost.updates_natively(config) == expected
    monkeypatch.setattr(graph_cost.native, "uses_gpus", lambda config: False)
    monkeypatch.setenv("CXX", "/none")  # without a compiler
    for kernels in ("native", "auto"):
        assert graph_cost.updates_natively(make_config(kernels=kernels)) == (kernels == "native")


def test_the_all_reduce_of_a_plan_is_of_the_bytes_that_are_sent(make_config):
    asked = dict(plan=True, plan_tflops=1e-6, plan_gbps=1e-3, plan_hosts="1,2", loss_scale="dynamic")
    plan = plan_of(make_config(num_gpus=0, **replicas(2), allreduce_dtype="bfloat16", **asked))
    sent = 2 * plan["parameters"]
    assert plan["all_reduce_bytes"] == plan["scaling"]["gradient_bytes"] == sent
    assert plan["expected"]["all_reduce_secs"] == pytest.approx(sent / 1e6)
    assert json.loads(json.dumps(plan)) == plan
