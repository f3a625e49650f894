"""IPUs, as far as a plan asks. A run on them is `official.graphcore`. Not run on hardware yet."""

from __future__ import annotations

from typing import NoReturn

from official.config import Config, ConfigError
from official.distribution.backends.backend import Backend


def _make_strategy(config: Config) -> NoReturn:
    raise ConfigError(
        "distribution_strategy=ipu trains with train.py or python -m official.graphcore alone. Use another"
        " --distribution_strategy here."
    )


BACKEND = Backend(
    strategies=(), make_strategy=_make_strategy, num_replicas=lambda config: config.ipu_replicas
)
