"""Measures the update: milliseconds and GB/s of each optimizer over a model's weights, compared with the
machine's memory bandwidth.

  python benchmarks/optimizer.py --bert_config_file=configs/models/bert_base.json \\
    --output=results/optimizer_bert_base

All cases run in turns in one process. The bound is the time to move the minimum number of bytes of an
optimizer: AdamW reads gradient, weights and two moments and writes weights and moments, 28 bytes per
parameter. LAMB, whose step depends on norms over whole tensors, reads weights and moments and writes weights
once more, 40 bytes. With --dtype=bf16 gradients have 2 bytes less, but copies of the weights in bf16 are
written, 2 bytes more; optimizers without this support cast the gradients before and the weights after the
update. The memory bandwidth is the highest of the cases that touch each number once: w -= a x over as many
weights, 12 bytes each, and AdamW.
"""

from typing import Any, Literal, NamedTuple

import harness
from official.cli import command_line, outputs
from official.config import Config

# Minimum bytes per parameter; for the norm those of a float32 gradient.
BYTES = {"memory": 12, "norm": 4, "adamw": 28, "lamb": 40}
_ONCE = ("memory", "adamw")  # not LAMB, whose second pass is partly cached
_KINDS = ("adamw", "lamb")
_TENSORFLOW = ", TensorFlow's operations"


class Way(NamedTuple):
    """A way to update weights: suffix of the optimizer's name, settings, whether all is compiled."""

    name: str
    settings: dict[str, Any]
    compiled: bool = False


_WAYS = (
    Way("", {"kernels": "native"}),
    Way(_TENSORFLOW, {"kernels": "fused"}),
    Way(", plain", {"kernels": "plain"}),
    Way(", plain, XLA", {"kernels": "plain"}, compiled=True),
)


class Main(harness.ModelFlag, harness.GpusFlag, harness.ChartFlags):
    """Flags of the command.

    Attributes:
      dtype: Type of the gradients, and of the copies of the weights.
      rounds: Number of timings of each case.
    """

    RANGES = {"rounds": command_line.COUNT}
    dtype: Literal["fp32", "bf16"] = "fp32"
    rounds: int = 9


def make_cases(flags) -> tuple[dict, int]:
    """Returns ({name: function to time}, number of parameters). The optimizers share weights and
    gradients."""
    import tensorflow as tf

    from official import config as config_lib
    from official.distribution import strategy as strategy_lib
    from official.tasks import TASKS
    from official.training import step_benchmark

    tf.get_logger().setLevel(
        "ERROR"
    )  # it mistakes the functions of several cases for repeated retracing of one
    model = harness.read_model(flags.bert_config_file)
    config = step_benchmark.step_config(
        model,
        16,
        1,
        flags.dtype,
        {"num_gpus": flags.num_gpus, "weight_decay_rate": 0.01, "learning_rate": 1e-4},
    )
    strategy = strategy_lib.make_strategy(config)
    with strategy.scope():
        task: Any = TASKS["pretrain"](config)
        variables = task.build_model().trainable_variables
        gradients = [
            tf.random.stateless_normal(variable.shape, [1, 2], stddev=1e-3) for variable in variables
        ]
    cases = {"memory": stream(variables, gradients)}
    if flags.dtype == "bf16":
        gradients = [tf.cast(gradient, tf.bfloat16) for gradient in gradients]
    for kind in _KINDS:
        for way in _WAYS:
            own = config_lib.replaced(config, optimizer_type=kind, **way.settings)
            optimizer = make_optimizer(own, strategy, variables)
            cases.setdefault("norm", norm(optimizer, gradients))
            cases[kind + way.name] = update(optimizer, strategy, way.compiled, variables, gradients)
    return cases, sum(variable.shape.num_elements() for variable in variables)


def stream(variables, gradients):
    import tensorflow as tf

    @tf.function
    def subtract():
        for variable, gradient in zip(variables, gradients):
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=1e-9, delta=gradient)
        return variables[-1][0]

    return lambda: subtract().numpy()


def norm(optimizer, gradients):
    import tensorflow as tf

    function = tf.function(lambda: optimizer.global_norm([tf.identity(gradient) for gradient in gradients]))
    return lambda: function().numpy()


def make_optimizer(config: Config, strategy, variables):
    """Returns the optimizer of a configuration, with its slots."""
    from official.optimization import optimizers, schedules

    with strategy.scope():
        optimizer = optimizers.build_optimizer(config, schedules.from_config(config))
        optimizer.create_slots(variables)
    return optimizer


def update(optimizer, strategy, compiled: bool, variables, gradients):
    """Returns a function that updates the weights once, and for gradients of another type also makes the
    weights' copies in that type."""
    import tensorflow as tf

    narrow, dtype = gradients[0].dtype != tf.float32, gradients[0].dtype
    writes_copies = narrow and hasattr(optimizer, "make_copies")
    if writes_copies:
        with strategy.scope():
            optimizer.make_copies(variables, dtype)

    def replica_update():
        given = gradients if writes_copies else [tf.cast(gradient, tf.float32) for gradient in gradients]
        optimizer.update(given, variables, tf.constant(1.0))
        return [] if writes_copies or not narrow else [tf.cast(variable, dtype) for variable in variables]

    @tf.function(jit_compile=compiled or None)
    def apply():
        copies = strategy.run(replica_update)
        return optimizer.iterations + 0, copies

    return lambda: apply()[0].numpy()


def rows(timings: dict, parameters: int) -> list[dict]:
    """Returns a row per case: seconds, GB/s of the minimum number of bytes, and the time relative to the
    bound."""
    sizes = {name: BYTES[name.split(",")[0]] * parameters for name in timings}
    bandwidth = max(timings[name].rate(sizes[name]) for name in timings if name.split(",")[0] in _ONCE)
    found = []
    for name, timing in timings.items():
        moved = sizes[name]
        found.append(
            {
                "name": name,
                "bytes": moved,
                "median_secs": timing.median,
                "spread": timing.spread,
                "gb_per_sec": timing.rate(moved) / 1e9,
                "over_bound": timing.median * bandwidth / moved,
                "secs": timing.secs,
            }
        )
    return found


def main() -> None:
    flags = Main.parse()
    cases, parameters = make_cases(flags)
    found = rows(harness.in_turns(cases, flags.rounds), parameters)
    columns = [
        ("case", "name", ""),
        ("s", "median_secs", ".4f"),
        ("+-", "spread", ".1%"),
        ("GB/s", "gb_per_sec", ".1f"),
        ("over the bound", "over_bound", ".2f"),
    ]
    print(outputs.table(columns, found))
    record = {"dtype": flags.dtype, "rounds": flags.rounds, "parameters": parameters, "cases": found}
    bars = [
        (
            row["name"],
            row["over_bound"],
            row["spread"],
            f"{row['median_secs'] * 1e3:.0f} ms",
            row["name"].split(",")[0],
        )
        for row in found[2:]
    ]
    title = f"Update of {parameters / 1e6:.0f} M parameters"
    unit = "time over the memory bound, shorter is better"
    harness.write(flags, record, bars, title, unit, limit=1.0, limit_text="memory bound")


if __name__ == "__main__":
    harness.main(main)
