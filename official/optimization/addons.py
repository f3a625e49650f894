"""tensorflow-addons' LAMB and AdamW: what --fused_ops=false takes, and what our own optimizers are measured against."""

import re
import warnings

from official.optimization.schedules import Scaled

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the end-of-life notice: the version is pinned
    import tensorflow_addons as tfa


class _AdamW(tfa.optimizers.AdamW):
    """tensorflow-addons' AdamW, choosing what to decay by name.

    The parent compares variable objects, which under a mirrored strategy are never the replica's own: with an exclusion
    list it would decay nothing there.
    """

    def _do_use_weight_decay(self, var):
        return not any(re.search(pattern, var.name) for pattern in self.exclude_from_weight_decay)


def make_lamb(excluded, **hyper):
    """Returns LAMB; arguments as those of `fused.Lamb`."""
    return tfa.optimizers.LAMB(exclude_from_weight_decay=excluded, exclude_from_layer_adaptation=excluded, **hyper)


def make_adamw(learning_rate, weight_decay, excluded, **hyper):
    """Returns AdamW; arguments as those of `fused.AdamW`."""
    return _AdamW(learning_rate=learning_rate, weight_decay=Scaled(learning_rate, weight_decay), exclude_from_weight_decay=excluded, **hyper)
