"""The step, the loop and the run: invariance, published recipe, evaluation, warm-up, resume, failure."""

import collections
import json
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf

from official import config as config_lib
from official.checkpoint.manager import CheckpointManager
from official.data.pipeline import TrainingOrder
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import make_batch_plan
from official.io.errors import ConfigError
from official.optimization import gradients as gradients_lib
from official.optimization import replica_step
from official.reporting.metrics import read_metrics
from official.reporting.mllog import MLPerfLog
from official.tasks import TASKS
from official.tasks.pretraining import PretrainingTask
from official.training import pipelined, run_lock
from official.training.strategy_loop import Loop
from tests.fixtures import slow
from tests.refusals import assert_refused
from tests.run_folders import run

DROPOUT = dict(hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.1)


def make_loop(config, callbacks=(), plan=None) -> Loop:
    strategy = strategy_lib.make_strategy(config)
    task = TASKS[config.task](config)
    task.find_data()
    state = pipelined.make_state(config, task, strategy)
    manager = CheckpointManager(config.model_dir, state.variables(), config.keep_checkpoints)
    plan = plan or make_batch_plan(config, strategy.num_replicas_in_sync).with_rows_of(task.sequences_per_row)
    return Loop(config, task, state, strategy, plan, manager, list(callbacks))


def run_steps(loop, iterator, steps: int) -> dict:
    return loop.train_loop(iterator, tf.constant(steps), loop.nothing)


def train(config, steps=5, plan=None) -> dict[str, np.ndarray]:
    """Runs some steps and returns the state by name."""
    loop = make_loop(config, plan=plan)
    run_steps(loop, loop._train_iterator(), steps)
    return values(loop.state)


def values(state) -> dict[str, np.ndarray]:
    return {name: variable.read_value().numpy() for name, variable in state.variables().items()}


def assert_close(ours, theirs, rtol=1e-4, atol=1e-5):
    assert ours.keys() == theirs.keys()
    for name in ours:
        # The gradient of a key bias is rounding noise, and Adam-type updates magnify it.
        np.testing.assert_allclose(
            ours[name], theirs[name], rtol=rtol, atol=0.2 if "key/bias" in name else atol, err_msg=name
        )


def replicas(count, all_reduce_alg="hierarchical_copy"):
    """Settings for replicas on logical CPUs. TensorFlow's default, collective operations, allows one group
    size a process."""
    own = dict(distribution_strategy="mirrored", num_virtual_devices=count, all_reduce_alg=all_reduce_alg)
    return own if count > 1 else {}


ADAMW, LOCAL = dict(optimizer_type="adamw"), dict(clip_scope="micro_batch", loss_normalization="local")
LEARNS = dict(learning_rate=0.05)  # in 20 steps; runs with the same settings share their steps
SCALED_PAIR = dict(replicas(2), loss_scale="dynamic")
PACKED, UNPAD = dict(pack_on_the_fly=True), dict(unpad=True)

LAYOUTS = [(1, 8, ADAMW), slow(2, 2, PACKED | ADAMW), slow(2, 1, dict(UNPAD, **ADAMW, kernels="plain"))]
LAYOUTS += [slow(*sizes, {}) for sizes in ((2, 4), (1, 8), (8, 1))]
LAYOUTS += [slow(*sizes, ADAMW) for sizes in ((2, 4), (4, 2))]
LAYOUTS += [slow(*sizes, PACKED) for sizes in ((1, 8), (4, 2))]
LAYOUTS += [slow(2, 2, UNPAD), slow(1, 4, UNPAD), slow(4, 2, dict(UNPAD, **LOCAL))]


@pytest.mark.parametrize("count,accumulation,settings", LAYOUTS, ids=str)
def test_replicas_and_accumulation_do_not_change_the_weights(
    make_config, short_files, count, accumulation, settings
):
    """Nor does padding. What is clipped and divided in a micro batch depends on how a step is laid out."""

    def trained(**own):
        loop = make_loop(make_config(input_files=short_files, learning_rate=1e-3, **{**settings, **own}))
        totals = run_steps(loop, loop._train_iterator(), 4)
        return values(loop.state), np.array(totals.get("counts", ())).tolist()[:-1]

    laid_out = dict(replicas(count), num_accumulation_steps=accumulation)
    ours, counts = trained(**laid_out)
    expected, expected_counts = trained(unpad=False, **(laid_out if "clip_scope" in settings else {}))
    assert_close(ours, expected)
    assert counts == expected_counts


@pytest.mark.slow
@pytest.mark.parametrize("kernels", ["fused", "plain"])
@pytest.mark.parametrize("recompute", ["block", "attention"])
def test_what_is_computed_again_does_not_change_the_weights(make_config, recompute, kernels):
    shared = dict(model=DROPOUT, learning_rate=1e-3, num_accumulation_steps=2, deterministic=True)
    shared |= dict(kernels=kernels, **replicas(2))
    expected = train(make_config(**shared))
    ours = train(make_config(**shared, recompute=recompute))
    if kernels == "fused":
        assert_close(ours, expected)
    else:
        for name, value in expected.items():
            np.testing.assert_array_equal(ours[name], value, err_msg=name)


def all_reduces(config) -> list[tf.Operation]:
    """Returns the all-reduces of the replicas' part of a step."""
    loop = make_loop(config)
    micro_batches = config.num_accumulation_steps
    gradients = replica_step.make_replica_gradients(config, loop.task, loop.state, micro_batches)
    step = tf.function(lambda batch: loop.strategy.run(gradients, args=(batch,)), autograph=False)
    graph = step.get_concrete_function(next(loop._train_iterator())).graph
    return [each for each in graph.get_operations() if each.type == "CollectiveReduceV2"]


def reduced_sizes(config) -> collections.Counter:
    """Returns how often a step has an all-reduce of so many numbers."""
    shapes = [operation.inputs[0].shape for operation in all_reduces(config)]
    return collections.Counter(shape.num_elements() for shape in shapes if shape.rank == 1)


@pytest.mark.slow
def test_explicit_all_reduce_packs_gradients_and_does_not_change_the_weights(make_config):
    settings = replicas(2, None)
    packed = dict(**settings, explicit_allreduce=True, allreduce_bytes_per_pack=5000)
    weights = make_loop(make_config()).state.model.trainable_variables
    packs = collections.Counter(
        sum(weight.shape.num_elements() for weight in pack)
        for pack in gradients_lib._packs(weights[::-1], 5000)
    )
    assert 2 < packs.total() < len(weights)
    total = sum(size * count for size, count in packs.items())
    others = collections.Counter({2: 1, 8: 1})  # losses' weights, sums of metrics
    for settings_of, expected in (
        (settings, collections.Counter({2: 1, total + 8: 1})),  # TensorFlow's choice
        (packed, packs + others),
    ):
        found = reduced_sizes(make_config(**settings_of))
        operations = found[2]  # of one all-reduce: one, or one a replica
        assert found == collections.Counter({size: count * operations for size, count in expected.items()})
    ours = train(make_config(**packed, num_accumulation_steps=2))
    assert_close(ours, train(make_config(**replicas(2))))


def ancestors(operations) -> set:
    """Returns the operations that have to be done before some are, these among them."""
    found, left = set(), list(operations)
    while left:
        operation = left.pop()
        if operation not in found:
            found.add(operation)
            left += [tensor.op for tensor in operation.inputs] + list(operation.control_inputs)
    return found


@pytest.mark.slow
def test_the_packs_of_the_last_layers_do_not_wait_for_the_first_layers(make_config):
    packs = dict(explicit_allreduce=True, allreduce_bytes_per_pack=5000 * tf.bfloat16.size)
    settings = dict(allreduce_dtype="bfloat16", num_accumulation_steps=2, **replicas(2, None))
    config = make_config(dict(num_hidden_layers=3), **packs, **settings)
    packs = [each for each in all_reduces(config) if each.inputs[0].shape.num_elements() > 8]
    before = [ancestors([pack]) for pack in packs if "replica_1" not in pack.name]
    calls = {each for each in set.union(*before) if each.type.endswith("PartitionedCall")}
    needed = [len(found & calls) for found in before]
    # The first pack needs the backward pass of the heads alone; others, in their order, that of more layers.
    assert needed == sorted(needed) and len(set(needed)) > 2, needed


def local_gradients(loop, batch, parts):
    """The published recipe by hand: clipped gradients of the mean losses of every micro batch."""
    model, clipped = loop.state.model, []
    for part in range(parts):
        size = len(batch["input_ids"]) // parts
        rows = {name: value[part * size : (part + 1) * size] for name, value in batch.items()}
        with tf.GradientTape() as tape:
            terms = loop.task.terms(model(rows), rows)
            (mlm, predicted), (nsp, pairs) = terms["mlm_loss"], terms["nsp_loss"]
            loss = mlm / (predicted + 1e-5) + nsp / pairs
        clipped.append(tape.gradient(loss, model.trainable_variables))
    return clipped


@pytest.mark.slow
@pytest.mark.parametrize("scale_loss", [True, False])
def test_published_recipe_clips_each_micro_batch_before_averaging(make_config, record_files, scale_loss):
    """Two replicas, two micro batches each: sum over replicas of the mean over micro batches of the clipped
    gradients."""
    recipe = dict(clip_scope="micro_batch", loss_normalization="local", scale_loss=scale_loss, clip_norm=0.5)
    config = make_config(input_files=record_files(), **replicas(2), num_accumulation_steps=2, **recipe)
    loop = make_loop(config)
    batch = next(iter(loop.task.train_dataset(8, 8, TrainingOrder(config.seed))))
    factor = 0.5 if scale_loss else 1.0
    expected = None
    for gradients in local_gradients(loop, batch, 4):
        clipped, norm = tf.clip_by_global_norm([gradient * factor for gradient in gradients], 0.5)
        assert norm > 0.5  # else the test would not see where clipping happens
        expected = clipped if expected is None else [a + b for a, b in zip(expected, clipped)]
    replica_gradients = replica_step.make_replica_gradients(config, loop.task, loop.state, 2)
    distributed = strategy_lib.next_batch(loop._train_iterator(), loop.strategy)
    ours, factor, _, _ = tf.function(lambda: loop.strategy.run(replica_gradients, args=(distributed,)))()
    first = lambda value: loop.strategy.experimental_local_results(value)[0]
    for gradient, total in zip(ours, expected):
        np.testing.assert_allclose(first(gradient) * first(factor), total / 2, rtol=1e-3, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", slow("bf16")])
def test_xla_agrees(make_config, dtype):
    plain, compiled = [
        train(make_config(dtype=dtype, num_accumulation_steps=2, enable_xla=xla, learning_rate=1e-3), steps=2)
        for xla in (False, True)
    ]
    assert_close(compiled, plain, rtol=1e-2, atol=1e-4 if dtype == "fp32" else 2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    "count,clip_scope,normalization",
    [(1, "none", "global"), (1, "micro_batch", "local"), (2, "micro_batch", "local")],
)
def test_loss_scale_cancels_out(make_config, count, clip_scope, normalization):
    """Nothing is clipped here: clipping, like LAMB, would hide a factor. Adam's moments do not."""
    shared = dict(**replicas(count), clip_scope=clip_scope, loss_normalization=normalization)
    shared |= {} if clip_scope == "none" else dict(clip_norm=1e9)
    shared |= dict(num_accumulation_steps=2, learning_rate=1e-3, optimizer_type="adamw")
    scaled = train(make_config(**shared, loss_scale="1024"), steps=2)
    assert scaled.pop("loss_scale/scale") == 1024 and scaled.pop("loss_scale/good_steps") == 0
    assert_close(scaled, train(make_config(**shared), steps=2))


@pytest.mark.slow
def test_fp16_trains(make_config):
    settings = dict(dtype="fp16", num_accumulation_steps=2, learning_rate=5e-3)
    loop = make_loop(make_config(**replicas(2), **settings))
    iterator = loop._train_iterator()
    first, *_, last = [loop._train(iterator) for _ in range(3)]
    assert last["loss"] < first["loss"] and last["loss_scale"] == 2.0**15


def test_warm_up_leaves_every_variable_bit_equal(make_config):
    """Before the next test, which evaluates with the same steps: they are traced here."""
    loop = make_loop(make_config(**SCALED_PAIR, do_eval=True, num_eval_samples=16))
    before = values(loop.state)
    loop.warm_up()
    after = values(loop.state)
    assert all((after[name] == before[name]).all() for name in before)
    run_steps(loop, loop._train_iterator(), 2)
    loop.evaluate()
    assert [step.experimental_get_tracing_count() for step in (loop.train_loop, loop.eval_step)] == [1, 1]


def test_evaluation_is_exact_for_a_ragged_last_batch(make_config, record_files):
    """21 records, in batches of 8 on 2 replicas and of 21 on one, give the same sums."""
    files = record_files(files=3, records=7)
    shared = dict(input_files=files, do_eval=True, num_eval_samples=21)
    small = make_loop(make_config(**shared, **SCALED_PAIR, eval_batch_size=8)).evaluate()
    whole = make_loop(make_config(**shared, **LEARNS, eval_batch_size=21)).evaluate()
    for name in ("loss", "mlm_loss", "nsp_loss", "mlm_accuracy", "nsp_accuracy"):
        assert small[name] == pytest.approx(whole[name], rel=1e-5)


def test_a_run_writes_its_folder_learns_and_is_evaluated_anew(make_config, record_files, caplog):
    """An evaluation alone is that of the training; a run that is over is evaluated on another set."""
    files = record_files(records=100)
    shared = dict(LEARNS, input_files=files, do_eval=True, steps_between_eval=10, keep_checkpoints=2)
    config = make_config(**shared, num_eval_samples=24)
    result, folder = run(config), pathlib.Path(config.model_dir)
    assert (result.status, result.step, result.samples, result.exit_code) == ("finished", 20, 160, 0)
    saved = json.loads((folder / "result.json").read_text())
    assert saved["checkpoint"].endswith("ckpt-20") and saved["learning_rates"]["0"] == pytest.approx(0.05)
    assert 0 < saved["majority_accuracy"] < 0.5 and saved["majority_prediction"].startswith("#")
    assert [len(group["items"]) for group in saved["examples"]] == [6]
    assert "Masked tokens and predictions" in (folder / "report.html").read_text()
    lines = read_metrics(str(folder))
    assert [line["step"] for line in lines if line["split"] == "eval"] == [10, 20]
    assert [line["step"] for line in lines if line["split"] == "train"] == [5, 10, 15, 20]
    evaluations = [line["loss"] for line in lines if line["split"] == "eval"]
    assert evaluations[-1] < evaluations[0] - 0.05
    names = {path.name for path in folder.iterdir()}
    assert {name for name in names if name.endswith(".index")} == {"ckpt-15.index", "ckpt-20.index"}
    assert {*"config.json command.txt metrics.jsonl report.html tensorboard checkpoint".split()} <= names
    assert tf.train.latest_checkpoint(str(folder)).endswith("ckpt-20")
    again = run(config)
    for name in ("eval_loss", "sequences_per_sec", "wall_secs"):
        assert getattr(again, name) == getattr(result, name)
    alone = dict(shared, eval_files=files, input_files=None, use_synthetic_data=False, do_train=False)
    evaluated = run(make_config(**alone, num_eval_samples=24))
    assert evaluated.eval_accuracy == pytest.approx(result.eval_accuracy) and evaluated.step == result.step
    other = record_files(name="other", records=3)
    assert "num_eval_samples" not in caplog.text
    assert run(make_config(**shared, eval_files=other, num_eval_samples=7)).eval_loss != result.eval_loss
    assert caplog.text.count("--num_eval_samples=7: the evaluation files have only 6 records") == 1


@pytest.mark.slow
def test_examples_are_the_same_on_replicas_and_change_nothing(make_config, record_files, monkeypatch):
    """They are looked at after the end of the training, so that no timed region pays for them; 5 rows are
    fewer than the replicas have room for."""
    events = []
    monkeypatch.setattr(PretrainingTask, "example_outputs", _noting(events, PretrainingTask.example_outputs))
    monkeypatch.setattr(MLPerfLog, "on_end", _noting(events, MLPerfLog.on_end))
    shared = dict(input_files=record_files(files=1, records=5), num_eval_samples=5, learning_rate=0.0)
    shared |= dict(do_eval=True, num_steps_per_epoch=1)
    folder = make_config().model_dir
    one, two = run(make_config(**shared)), run(make_config(**shared, **replicas(2), model_dir=folder + "-2"))
    assert events[:2] == ["on_end", "example_outputs"]
    assert one.examples == two.examples and len(one.examples[0]["items"]) == 5
    synthetic = make_config(num_steps_per_epoch=1, do_eval=True, num_eval_samples=8, model_dir=folder + "-3")
    assert run(synthetic).examples == []


def _noting(events: list, function):
    def noting(*arguments, **named):
        events.append(function.__name__)
        return function(*arguments, **named)

    return noting


@pytest.mark.slow
def test_accumulation_of_a_model_of_some_size(make_config):
    """TensorFlow's optimizer of graphs breaks the sum of gradients of a model like this one, not of smaller
    ones."""
    model = dict(vocab_size=30522, hidden_size=128, max_position_embeddings=128)
    sizes = dict(train_batch_size=16, max_seq_length=128, max_predictions_per_seq=20, num_steps_per_epoch=1)
    assert run(make_config(model=model, num_accumulation_steps=4, **sizes)).status == "finished"


def spoil(loop) -> None:
    """Breaks a weight."""
    bias = loop.state.model_variables()["bert/pooler/dense/bias"]
    bias.assign(np.full(bias.shape, np.nan, np.float32))


def poison(monkeypatch, at_step: int, after_update: bool):
    """Breaks a weight: before the inner loop that starts at a step, or by its last update."""
    original = Loop._train

    def poisoned(self, *arguments):
        hit = self.state.step == at_step
        if hit and not after_update:
            spoil(self)
        result = original(self, *arguments)
        if hit and after_update:
            spoil(self)
        return result

    monkeypatch.setattr(Loop, "_train", poisoned)


def test_non_finite_numbers_stop_the_run_and_keep_the_last_good_checkpoint(make_config, monkeypatch):
    settings = dict(checkpoint_every_steps=5, do_eval=True, steps_between_eval=10, num_eval_samples=8)
    config = make_config(**settings, **LEARNS)
    for after_update, reason in ((False, "nsp_loss"), (True, "weights not finite after step 15")):
        with monkeypatch.context() as patched:
            poison(patched, at_step=10, after_update=after_update)
            result = run(config)
        assert (result.status, result.exit_code) == ("failed", 3) and reason in result.reason
        assert result.checkpoint.endswith("ckpt-10")
        reader = tf.train.load_checkpoint(result.checkpoint)
        assert all(np.isfinite(reader.get_tensor(name)).all() for name in reader.get_variable_to_shape_map())
        if not after_update:
            lines = [line for line in read_metrics(config.model_dir) if line["split"] == "train"]
            assert "step 11" in result.reason and lines[-1]["nsp_loss"] is None
            assert result.eval_accuracy is not None
    assert run(config).status == "finished"


def test_a_fixed_scale_that_skips_every_update_is_a_failure(make_config):
    result = run(make_config(loss_scale="3e38"))
    assert (result.status, result.exit_code) == ("failed", 3)
    assert "gradient norm not finite in any of the 5 steps" in result.reason


def test_other_random_records_are_another_evaluation(make_config):
    """The seed draws them, and predictions and batches are their shape; of real records these three change
    nothing but the shape."""

    def earlier(config):
        os.makedirs(config.model_dir, exist_ok=True)
        (pathlib.Path(config.model_dir) / "config.json").write_text(config_lib.to_json(config))
        return run_lock.PreviousRun(config.model_dir)

    random = earlier(make_config())
    assert random.evaluates_like(make_config())
    changed = dict(seed=7, eval_batch_size=4, max_predictions_per_seq=2, num_eval_samples=8)
    for name, value in changed.items():
        assert not random.evaluates_like(make_config(**{name: value})), name
    real = earlier(make_config(input_files="x"))
    assert real.evaluates_like(make_config(input_files="x", seed=7, eval_batch_size=4))
    assert not real.evaluates_like(make_config(input_files="x", max_predictions_per_seq=2))
    assert not real.evaluates_like(make_config(input_files="y"))


@pytest.mark.parametrize("when", ["training", slow("resuming"), "evaluating"])
def test_a_truncated_file_is_named(make_config, record_files, tmp_path, when):
    files, evaluation = record_files(), record_files(name="eval")
    shared = dict(LEARNS, input_files=files, eval_files=evaluation, do_eval=True)
    if when == "resuming":
        run(make_config(**shared, stop_steps=5))
    path = tmp_path / ("eval" if when == "evaluating" else "train") / "part-00001"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(ConfigError, match="part-00001 is truncated or damaged after record 19"):
        run(make_config(**shared))


def test_missing_devices_are_named(make_config):
    tpu = dict(distribution_strategy="tpu")
    cases = [
        (dict(num_gpus=8, distribution_strategy="mirrored"), "num_gpus=8 but this machine has"),
        (dict(tpu, tpu="local"), "no TPU"),
        (dict(tpu, tpu="local", num_tpu_cores=32, do_eval=True), "steps = 32 x 1. Nearest valid: 32"),
        (dict(tpu, tpu="grpc://localhost:1"), "cannot reach this TPU"),
        (dict(distribution_strategy="mirrored", num_gpus=0, all_reduce_alg="nccl"), "nccl needs GPUs"),
    ]
    assert_refused(lambda settings: run(make_config(**settings)), cases)


def test_replicas_read_the_dataset_itself():
    """Behind a distributed one stand iterators of TensorFlow's own that are autotuned, and whose end can take
    a minute."""
    dataset = tf.data.Dataset.range(4)
    mirrored = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    for strategy in (tf.distribute.OneDeviceStrategy("CPU:0"), mirrored):
        contexts = []
        made = strategy_lib.distribute(lambda context, own=contexts: own.append(context) or dataset, strategy)
        assert made is dataset
        assert (contexts[0].num_input_pipelines, contexts[0].input_pipeline_id) == (1, 0)
        values = [
            strategy.experimental_local_results(value) for value in strategy_lib.batches(dataset, strategy)
        ]
        assert [int(value) for each in values for value in each] == [0, 1, 2, 3]
        assert {len(each) for each in values} == {strategy.num_replicas_in_sync}


def test_a_run_goes_on_with_what_it_computed(tmp_path, make_config):
    """What no shape tells is compared with the settings that the run was started with; an older run's gelu is
    the tanh form."""
    config = make_config()
    for name in ("gelu", "gelu_tanh"):
        saved = json.loads(config_lib.to_json(config))
        saved["model"]["hidden_act"] = name
        (tmp_path / "config.json").write_text(json.dumps(saved))
        run_lock.PreviousRun(str(tmp_path)).check_model(config)
    run_lock.PreviousRun(str(tmp_path / "nowhere")).check_model(config)
    cases = [
        ({"hidden_act": "gelu_erf"}, "has hidden_act=gelu_tanh, the model has hidden_act=gelu_erf"),
        ({"num_attention_heads": 2}, "has num_attention_heads=4, the model has num_attention_heads=2"),
        ({"layer_norm_eps": 1e-5}, "has layer_norm_eps=1e-12, the model has layer_norm_eps=1e-05"),
    ]
    previous = run_lock.PreviousRun(str(tmp_path))
    assert_refused(lambda change: previous.check_model(make_config(change)), cases)
    modern = {"family": "modernbert", "block_type": "modernbert"}
    (tmp_path / "config.json").write_text(config_lib.to_json(make_config(modern, objective="mlm")))
    changed = {**modern, "classifier_pooling": "mean", "max_position_embeddings": 64}
    told = "has classifier_pooling=cls, the model has classifier_pooling=mean"
    with pytest.raises(ConfigError, match=told):
        run_lock.PreviousRun(str(tmp_path)).check_model(make_config(changed, objective="mlm"))
