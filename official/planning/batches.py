"""The batches of a run that is planned: as the run itself would deal them out."""

from __future__ import annotations

from official.config import Config
from official.config.backends import BACKENDS
from official.config.cluster import read_cluster
from official.distribution import strategy as strategy_lib
from official.distribution.batch_plan import BatchPlan, Layout, make_batch_plan
from official.distribution.layout import is_kept, lay_out


def num_hosts(config: Config) -> int:
    """Returns the processes of the run. Raises ConfigError where nobody names them."""
    is_shared = BACKENDS[config.distribution_strategy].several_processes
    return len(read_cluster(config).hosts) if is_shared else 1


def planned_batches(config: Config) -> tuple[BatchPlan, Layout | None]:
    """Returns the batches of a new run, and the layout that it would keep, where it keeps one; the folder of
    the run is not looked at.

    Raises:
      ConfigError: where they cannot be divided, or the number of replicas does not follow from the settings.
    """
    replicas = strategy_lib.num_replicas(config)
    if not is_kept(config):
        return make_batch_plan(config, replicas), None
    return lay_out(config, num_hosts(config), replicas, None)
