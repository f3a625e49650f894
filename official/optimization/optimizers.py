"""The optimizers by name, with the exclusions of the MLPerf v0.7 recipe: our own fused ones and tensorflow-addons'."""

import tensorflow as tf

from official.optimization import fused
from official.optimization.gradients import scaled

# Neither decayed nor, by LAMB, adapted. The reference's AdamW list misses LayerNorm's TF1 spelling, so that the gamma of
# the MLM head is decayed there; one list serves both optimizers here.
EXCLUDED = ("LayerNorm", "layer_norm", "bias")

# Names of the slots in checkpoints, as Google's and Graphcore's TF1 optimizers write them.
SLOT_NAMES = {"lamb": {"m": "lamb_m", "v": "lamb_v"}, "adamw": {"m": "adam_m", "v": "adam_v"}}


Optimizer = fused.Fused | tf.keras.optimizers.legacy.Optimizer


def build_optimizer(config, schedule) -> Optimizer:
    """Returns the optimizer. Updates are float32; `optimizer.iterations` counts steps and drives the schedule.

    lamb (You et al. 2019): m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight_decay * w, w -= rate * |w| / |u| * u.
    adamw: w -= rate * weight_decay * w, then Adam (Keras form: epsilon beside the uncorrected root).
    --fused_ops=false takes tensorflow-addons' optimizers, the same to rounding.
    """
    hyper = dict(learning_rate=schedule, weight_decay=config.weight_decay_rate, beta_1=config.beta_1, beta_2=config.beta_2,
                 epsilon=config.epsilon, excluded=list(EXCLUDED))
    if config.fused_ops:
        return {"lamb": fused.Lamb, "adamw": fused.AdamW}[config.optimizer_type](**hyper)
    from official.optimization import addons  # a second of start-up

    return {"lamb": addons.make_lamb, "adamw": addons.make_adamw}[config.optimizer_type](**hyper)


def apply(optimizer: Optimizer, gradients, variables, factor) -> None:
    """Updates variables with gradients times `factor`, float32, which are the same on every replica."""
    if isinstance(optimizer, fused.Fused):
        optimizer.update(gradients, variables, factor)
    else:
        optimizer.apply_gradients(zip(scaled(gradients, factor), variables), experimental_aggregate_gradients=False)


def create_slots(optimizer: Optimizer, variables) -> None:
    """Creates the optimizer's variables now, so that a checkpoint can be restored before the first step."""
    if isinstance(optimizer, fused.Fused):
        optimizer.create_slots(variables)
    else:
        optimizer._create_all_weights(variables)  # pylint: disable=protected-access  # what apply_gradients calls


def slot_variables(optimizer: Optimizer, optimizer_type: str, variables) -> dict[str, tf.Variable]:
    """Returns {checkpoint name: slot variable}, e.g. bert/embeddings/word_embeddings/lamb_m."""
    return {
        f"{variable.name.split(':')[0]}/{saved}": optimizer.get_slot(variable, slot)
        for slot, saved in SLOT_NAMES[optimizer_type].items() for variable in variables
    }
