"""LAMB and AdamW with the exclusions of the MLPerf v0.7 recipe."""

import re
import warnings

import tensorflow as tf

from official.optimization.schedules import Scaled

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the end-of-life notice: the version is pinned
    import tensorflow_addons as tfa

# Neither decayed nor, by LAMB, adapted. The reference's AdamW list misses LayerNorm's TF1 spelling, so that the gamma of
# the MLM head is decayed there; one list serves both optimizers here.
EXCLUDED = ("LayerNorm", "layer_norm", "bias")

# Names of the slots in checkpoints, as Google's and Graphcore's TF1 optimizers write them.
SLOT_NAMES = {"lamb": {"m": "lamb_m", "v": "lamb_v"}, "adamw": {"m": "adam_m", "v": "adam_v"}}


class _AdamW(tfa.optimizers.AdamW):
    """tensorflow-addons' AdamW, choosing what to decay by name.

    The parent compares variable objects, which under a mirrored strategy are never the replica's own: with an exclusion
    list it would decay nothing there.
    """

    def _do_use_weight_decay(self, var):
        return not any(re.search(pattern, var.name) for pattern in self.exclude_from_weight_decay)


def build_optimizer(config, schedule) -> tf.keras.optimizers.legacy.Optimizer:
    """Returns the optimizer. Updates are float32; `optimizer.iterations` counts steps and drives the schedule.

    lamb (You et al. 2019): m, v with bias correction, u = m / (sqrt(v) + epsilon) + weight_decay * w, w -= rate * |w| / |u| * u.
    adamw: w -= rate * weight_decay * w, then Adam (Keras form: epsilon beside the uncorrected root).
    """
    common = dict(beta_1=config.beta_1, beta_2=config.beta_2, epsilon=config.epsilon, exclude_from_weight_decay=list(EXCLUDED))
    if config.optimizer_type == "lamb":
        return tfa.optimizers.LAMB(learning_rate=schedule, weight_decay=config.weight_decay_rate,
                                   exclude_from_layer_adaptation=list(EXCLUDED), **common)
    return _AdamW(learning_rate=schedule, weight_decay=Scaled(schedule, config.weight_decay_rate), **common)


def create_slots(optimizer, variables) -> None:
    """Creates the optimizer's variables now, so that a checkpoint can be restored before the first step."""
    optimizer._create_all_weights(variables)  # pylint: disable=protected-access  # what apply_gradients calls


def slot_variables(optimizer, optimizer_type: str, variables) -> dict[str, tf.Variable]:
    """Returns {checkpoint name: slot variable}, e.g. bert/embeddings/word_embeddings/lamb_m."""
    return {
        f"{variable.name.split(':')[0]}/{saved}": optimizer.get_slot(variable, slot)
        for slot, saved in SLOT_NAMES[optimizer_type].items() for variable in variables
    }
