"""The evaluation rules of MLPerf, by name: how often, on what and to which accuracy."""

from __future__ import annotations

from official.config.derived import MAX_STEPS_PER_LOOP
from official.config.table import FIELDS, Config, replaced
from official.io.errors import ConfigError


def with_eval_rule(config: Config) -> Config:
    """Returns the configuration with what --eval_rule decides filled in.

    A setting at its default counts as not given: a saved config.json holds all of them.

    Raises:
      ConfigError: naming every setting that contradicts the rule, and the values that do not.
    """
    if config.eval_rule is None:
        return config
    values = _RULES[config.eval_rule](_sequences_per_step(config))
    values["steps_per_loop"] = _steps_per_loop(config.steps_per_loop, values["steps_between_eval"])
    wrong = [name for name, value in values.items() if config[name] not in (value, FIELDS[name].default)]
    if wrong:
        loops = (
            f" (steps_per_loop may be any divisor of {values['steps_between_eval']})"
            if "steps_per_loop" in wrong
            else ""
        )
        raise ConfigError(
            f"eval_rule={config.eval_rule} with {_sequences_per_step(config)} sequences a step means"
            f" {', '.join(f'{name}={_text(values[name])}' for name in wrong)}; received"
            f" {', '.join(_text(config[name]) for name in wrong)}. Give these values{loops}, or drop"
            " --eval_rule."
        )
    return replaced(config, **values)


def _sequences_per_step(config: Config) -> int:
    """Returns the sequences of a step. Raises ConfigError where rows are packed and nothing says how many
    they hold."""
    average = config.average_sequences_per_pack
    if config.pack_on_the_fly and not average:
        raise ConfigError(
            f"eval_rule={config.eval_rule} counts sequences, and with --pack_on_the_fly a row holds several."
            " Give --average_sequences_per_pack, such as 2 for Wikipedia in rows of 512 tokens."
        )
    return round(config.train_batch_size * (average or 1.0))


def _steps_per_loop(given: int | None, every: int) -> int:
    """Returns the steps of a loop that fit between two evaluations: the given ones, or the most that are no
    more than 200.

    A loop of all steps between two evaluations would answer no signal for as long, hours on a small machine.
    """
    if given and every % given == 0:
        return given
    return max(steps for steps in range(1, MAX_STEPS_PER_LOOP + 1) if every % steps == 0)


def _text(value) -> str:
    """Returns a value as a command line takes it."""
    return '""' if value is None else str(value)


def _mlperf_0_7(batch_size: int) -> dict:
    """From 3,000,000 sequences on, every 500,000, on the first 10,000 records of the training set.

    Source: MLPerf Training v0.7 rules; its submissions round both up to whole steps.
    """
    return {
        "do_eval": True,
        "steps_between_eval": _ceil(500_000, batch_size),
        "steps_before_eval_start": _ceil(3_000_000, batch_size),
        "eval_files": None,
        "num_eval_samples": 10_000,
        "stop_threshold": 0.712 if batch_size < 8192 else 0.706,
    }


def _mlperf_1_0(batch_size: int) -> dict:
    """Every floor(0.05 * (230.23 * batch + 3,000,000) / 25,000) * 25,000 sequences, on 10,000 held-out
    records.

    Source: MLPerf Training v1.0 rules.
    """
    interval = int(0.05 * (230.23 * batch_size + 3_000_000) / 25_000) * 25_000
    return {
        "do_eval": True,
        "steps_between_eval": _ceil(interval, batch_size),
        "steps_before_eval_start": 0,
        "num_eval_samples": 10_000,
        "stop_threshold": 0.720,
    }


def _ceil(samples: int, batch_size: int) -> int:
    return -(-samples // batch_size)


_RULES = {"mlperf_0.7": _mlperf_0_7, "mlperf_1.0": _mlperf_1_0}
