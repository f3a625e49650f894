"""The file of a machine and what is predicted from it: arithmetic against numbers made by hand, no times."""

import json

import pytest
import tensorflow as tf

from official.cli import flags
from official.config import ConfigError, bert_config_from_dict
from official.io.processor import Processor, processor
from official.planning import executor, kernels, machine, prediction, speed
from official.planning import plan as plan_lib
from official.planning.executor import Job
from official.planning.flat_graph import FlatGraph
from official.planning.graph_cost import Cost
from official.planning.kernels import Product, Work
from official.planning.machine import Rate
from official.planning.timeline import Timed
from official.tasks import TASKS
from tests.conftest import ROOT, TINY

HERE = Processor("a processor", 2, ("avx2",))
SQUARE = Product(1, 100, 100, 100)  # 2e6 FLOPs


def product(rows: int, dtype: str = "fp32", transposed: str = "none") -> Work:
    return Work(kernels.PRODUCT, dtype, 0, Product(1, rows, 100, 100, transposed))


def made(*rates: Rate, all_reduce: float | None = None) -> machine.Machine:
    """Returns a machine whose operations cost nothing beside their work."""
    return machine.Machine(HERE, "CPU", "2.15", rates, 1e-12, 1e-12, all_reduce)


def cost(*works: Work) -> Cost:
    timed = [Timed(work, 1, "part", (place - 1,) if place else ()) for place, work in enumerate(works)]
    return Cost(1, 1, 0, 0, 0, 0, tuple(timed))


@pytest.mark.parametrize(
    "jobs, expected",
    [
        # Two that take one core each run beside each other; a third waits for a thread.
        ([(3.0, 1), (1.0, 1), (1.0, 1)], 3.0),
        # Two that take both cores share them: both are done after the sum of their times.
        ([(1.0, 2), (1.0, 2)], 2.0),
        # One that takes one core leaves the other one to who takes two.
        ([(1.0, 1), (1.0, 2)], 1.5),
        ([(0.0, 1), (0.0, 1)], 0.0),
    ],
)
def test_what_waits_for_nothing_shares_the_cores(jobs, expected):
    found = executor.run([Job(secs, cores, "part", ()) for secs, cores in jobs], 2)
    assert sum(found.values()) == pytest.approx(expected)


def test_what_waits_comes_after_and_parts_add_up():
    jobs = [Job(1.0, 1, "a", ()), Job(2.0, 1, "b", (0,)), Job(3.0, 1, "c", (0,)), Job(1.0, 2, "d", (1, 2))]
    found = executor.run(jobs, 2)
    # 1 of a, then b and c beside each other for 2, c alone for 1, d for 1.
    assert found == pytest.approx({"a": 1.0, "b": 1.0, "c": 2.0, "d": 1.0})
    assert executor.run(jobs[:3], 1) == pytest.approx({"a": 1.0, "b": 2.0, "c": 3.0})


def test_products_take_the_rate_of_their_shape_and_kernels_that_of_their_bytes():
    here = made(
        Rate(product(100), 1.0, 2.0),
        Rate(product(400), 2.0, 1.0),
        Rate(product(100, transposed="left"), 8.0, 2.0),
        Rate(Work("elementwise", "fp32", 1000), 0.5, 1.0),
    )
    assert here.alone(product(100)) == pytest.approx((1.0, 2.0))
    # Half way between the two: their geometric mean, twice the FLOPs at sqrt(2) times the rate.
    assert here.alone(product(200))[0] == pytest.approx(2 / 2**0.5)
    assert here.alone(product(50, transposed="left"))[0] == pytest.approx(4.0)
    # What was not measured counts as an element-wise operation of as many bytes.
    assert here.alone(Work("unheard of", "fp32", 3000)) == pytest.approx((1.5, 1.0))
    assert here.alone(kernels.NOTHING) == (0.0, 1.0)


def test_a_step_is_the_sum_of_its_parts_and_of_the_all_reduce():
    here = made(
        Rate(product(100), 1.0, 2.0), Rate(Work("elementwise", "fp32", 1000), 0.5, 2.0), all_reduce=2.0
    )
    works = product(100), Work("elementwise", "fp32", 2000)
    assert speed.predict_step(cost(*works), here).secs == pytest.approx(2.0)
    # 2 x 3 / 4 of 4 GB at 2 GB/s; four that share the machine take four times as long.
    found = speed.predict_step(cost(*works), here, replicas=4, sharing=4, sent_bytes=4 * 10**9)
    assert found.parts == pytest.approx({"part": 8.0, "all-reduce": 3.0, "calls": 1e-12})
    assert found.secs == pytest.approx(11.0)


def test_what_an_operation_asks_for():
    def work(build) -> Work:
        with tf.Graph().as_default() as graph:
            build()
            flat = FlatGraph()
            flat.add(graph, graph.get_operations(), {})
        return max((node.work for node in flat.nodes), key=lambda work: work.bytes)

    x, y = (lambda *shape: tf.compat.v1.placeholder(tf.float32, shape) for _ in range(2))
    found = work(lambda: tf.matmul(x(3, 4), y(5, 4), transpose_b=True))
    assert found == Work("product", "fp32", 4 * (12 + 20 + 15), Product(1, 3, 4, 5, "right"))
    assert work(lambda: tf.matmul(x(2, 3, 4, 5), y(2, 3, 5, 6))).product == Product(6, 4, 5, 6)
    assert work(lambda: tf.einsum("bld,dhk->blhk", x(2, 3, 4), y(4, 5, 6))).product == Product(1, 6, 4, 30)
    assert work(lambda: x(10) + y(10)) == Work("elementwise", "fp32", 120)
    assert work(lambda: tf.reduce_sum(x(8, 100), axis=-1)).kernel == "row sums"
    assert work(lambda: tf.reduce_sum(x(8, 100), axis=0)).kernel == "column sums"
    assert work(lambda: tf.pow(x(100), tf.constant(3.0) - 1.0)).kernel == "elementwise"
    assert work(lambda: tf.pow(x(100), 3.0)).kernel == "power"
    assert work(lambda: tf.reshape(x(100), [10, 10])) == kernels.NOTHING
    assert kernels.compiled_name("__inference__norm_gradient_1234") == "compiled norm gradient"


def file_of(here: machine.Machine, path) -> str:
    path.write_text(json.dumps(machine.to_json(here)))
    return str(path)


def whole() -> machine.Machine:
    works = [product(100), product(100, "bf16"), Work("elementwise", "fp32", 1000)]
    return made(*(Rate(work, 1e-5, 2.0) for work in works), all_reduce=1.5)


def test_a_machine_goes_to_its_file_and_back(tmp_path):
    path = file_of(whole(), tmp_path / "m.json")
    assert machine.find(path) == whole()
    values = json.loads((tmp_path / "m.json").read_text())
    assert list(values) == [
        "machine_format",
        "processor",
        "device",
        "tensorflow",
        "operation_secs",
        "call_secs",
        "all_reduce_gb_per_sec",
        "products",
        "kernels",
    ]
    assert values["products"][0]["gflops"] == pytest.approx(2e6 / 1e-5 / 1e9)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda values: values.pop("machine_format"), "machine_format is missing, expected 1"),
        (lambda values: values.update(machine_format=7), "machine_format is 7, expected 1"),
        (lambda values: values.pop("kernels"), 'has no "kernels"'),
        (lambda values: values.update(call_secs=0), '"call_secs" is 0, expected more than 0'),
        (lambda values: values["products"][0].update(secs=-1.0), 'product 1: "secs" is -1'),
        (lambda values: values["products"][1].update(rows="many"), 'product 2: "rows" is a text'),
        (lambda values: values["kernels"][0].pop("bytes"), 'kernel 1 has no "bytes"'),
        (lambda values: values.update(processor=[]), '"processor" is a list'),
    ],
)
def test_a_damaged_or_foreign_file_is_one_line(tmp_path, change, message):
    values = machine.to_json(whole())
    change(values)
    path = tmp_path / "m.json"
    path.write_text(json.dumps(values))
    with pytest.raises(ConfigError) as error:
        machine.find(str(path))
    assert (
        message in str(error.value) and "\n" not in str(error.value) and "machine_file=" in str(error.value)
    )


def test_a_file_that_is_none_and_one_that_is_missing(tmp_path):
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(ConfigError, match="m.json: not a JSON file"):
        machine.find(str(tmp_path / "m.json"))
    with pytest.raises(ConfigError, match="--machine_file=.*none.json: No such file"):
        machine.find(str(tmp_path / "none.json"))


def test_each_machine_has_a_file_of_its_own_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path))
    assert machine.find(None) is None
    path = machine.default_path()
    others = [HERE, HERE._replace(cores=4), HERE._replace(name="another"), HERE._replace(instructions=())]
    paths = {machine.default_path(other, "2.15") for other in others}
    assert len(paths | {path, machine.default_path(HERE, "2.16")}) == 6
    with open(path, "w", encoding="utf-8") as file:
        json.dump(machine.to_json(whole()), file)
    assert machine.find(None) == whole()


def test_the_processor_says_what_it_knows(tmp_path):
    path = tmp_path / "cpuinfo"
    path.write_text("model name\t: Some CPU\nflags\t\t: fpu avx2 amx_bf16 avx512_bf16 unheard_of\n")
    found = processor(str(path))
    assert found.name == "Some CPU" and found.instructions == ("avx2", "avx512_bf16", "amx_bf16")
    assert processor(str(tmp_path / "none")).instructions == ()


def test_products_of_a_type_that_was_not_measured():
    with pytest.raises(ConfigError, match="no matrix products of fp16, only of bf16, fp32.*--dtypes=fp16"):
        whole().alone(product(1000, "fp16"))
    assert whole().alone(product(8, "fp16"))[0] > 0  # as small as a head


def planned(tmp_path, monkeypatch, *arguments) -> dict:
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("BERT_CACHE_DIR", str(tmp_path / "cache"))
    model = tmp_path / "model.json"
    model.write_text(json.dumps(TINY))
    given = [
        f"--bert_config_file={model}",
        "--model_dir=m",
        "--use_synthetic_data",
        "--num_gpus=0",
        "--max_seq_length=16",
        "--max_predictions_per_seq=4",
        "--train_batch_size=4",
        "--plan",
    ]
    return plan_lib.make_plan(flags.parse([*given, *arguments]), TASKS["pretrain"])


def test_a_plan_predicts_where_the_machine_was_measured(tmp_path, monkeypatch):
    without = planned(tmp_path, monkeypatch)
    assert without["predicted"] is None and "bert benchmark machine" in plan_lib.describe(without)
    path = file_of(whole(), tmp_path / "m.json")
    found = planned(tmp_path, monkeypatch, f"--machine_file={path}")
    predicted = found["predicted"]
    assert set(predicted) == {"machine", "step_secs", "sequences_per_sec", "parts"}
    assert predicted["step_secs"] == pytest.approx(sum(predicted["parts"].values()))
    assert predicted["sequences_per_sec"] == pytest.approx(4 / predicted["step_secs"])
    assert "a processor, 2 cores" in plan_lib.describe(found)
    whole_steps = planned(tmp_path, monkeypatch, f"--machine_file={path}", "--enable_xla")
    assert whole_steps["predicted"] is None


def test_a_machine_of_other_devices_predicts_nothing(tmp_path):
    path = file_of(whole()._replace(device="GPU"), tmp_path / "m.json")
    (tmp_path / "model.json").write_text(json.dumps(TINY))
    given = ["--model_dir=m", "--use_synthetic_data", "--num_gpus=0", "--max_seq_length=16"]
    given += ["--max_predictions_per_seq=4", f"--machine_file={path}"]
    config = flags.parse([f"--bert_config_file={tmp_path}/model.json", *given])
    assert not prediction.is_possible(config)


@pytest.mark.parametrize("head", ["encoder", "squad", "glue"])
def test_a_forward_pass_is_predicted(head):
    bert = bert_config_from_dict(TINY, "bert_config_file")
    short, long = (speed.predict_forward(bert, head, length, 2, "bf16", whole()) for length in (8, 16))
    assert 0 < short.secs < long.secs
    assert sum(long.parts.values()) == pytest.approx(long.secs)
    with pytest.raises(ConfigError, match="dtype=int8"):
        speed.predict_forward(bert, head, 8, 2, "int8", whole())
