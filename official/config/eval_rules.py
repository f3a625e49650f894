"""The evaluation rules of MLPerf, by name: how often, on what and to which accuracy."""

from official.config.errors import ConfigError


def apply_eval_rule(config, given: set[str]) -> None:
    """Fills in what --eval_rule decides.

    Args:
      config: the configuration, changed in place.
      given: names of the settings that were given.

    Raises:
      ConfigError: where a setting that was given contradicts the rule.
    """
    if config.eval_rule is None:
        return
    for name, value in _RULES[config.eval_rule](config.train_batch_size).items():
        if name in given and config[name] != value:
            raise ConfigError(f"eval_rule={config.eval_rule} with train_batch_size={config.train_batch_size} means {name}={value}, received "
                              f"{config[name]}. Drop --{name} or --eval_rule.")
        config[name] = value
    if "steps_per_loop" not in given:
        config.steps_per_loop = config.steps_between_eval


def _mlperf_0_7(batch_size: int) -> dict:
    """From 3,000,000 sequences on, every 500,000, on the first 10,000 records of the training set.

    Source: MLPerf Training v0.7 rules; its submissions round both up to whole steps.
    """
    return {
        "do_eval": True, "steps_between_eval": _ceil(500_000, batch_size), "steps_before_eval_start": _ceil(3_000_000, batch_size),
        "eval_files": None, "num_eval_samples": 10_000, "stop_threshold": 0.712 if batch_size < 8192 else 0.706,
    }


def _mlperf_1_0(batch_size: int) -> dict:
    """Every floor(0.05 * (230.23 * batch + 3,000,000) / 25,000) * 25,000 sequences, on 10,000 held-out records.

    Source: MLPerf Training v1.0 rules.
    """
    interval = int(0.05 * (230.23 * batch_size + 3_000_000) / 25_000) * 25_000
    return {"do_eval": True, "steps_between_eval": _ceil(interval, batch_size), "steps_before_eval_start": 0,
            "num_eval_samples": 10_000, "stop_threshold": 0.720}


def _ceil(samples: int, batch_size: int) -> int:
    return -(-samples // batch_size)


_RULES = {"mlperf_0.7": _mlperf_0_7, "mlperf_1.0": _mlperf_1_0}
