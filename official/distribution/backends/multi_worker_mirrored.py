"""The devices of several processes, which wait for each other and go on together."""

import tensorflow as tf

from official.config import Config, ConfigError
from official.config.cluster import read_cluster
from official.distribution import heartbeat
from official.distribution import strategy as strategy_lib
from official.distribution.backends.backend import Backend

_Implementation = tf.distribute.experimental.CommunicationImplementation
_IMPLEMENTATIONS = {
    "nccl": _Implementation.NCCL,
    "ring": _Implementation.RING,
    None: _Implementation.AUTO,
}


def _make_strategy(config: Config) -> tf.distribute.Strategy:
    """Joins the other processes; waits until all are there. On CPUs there is one replica a process."""
    if config.num_gpus is not None:
        on_gpus = "gpu" in strategy_lib.replica_devices(config)[0]
        gpus = tf.config.list_physical_devices("GPU")[: config.num_gpus] if on_gpus else []
        tf.config.set_visible_devices(gpus, "GPU")
    if config.all_reduce_alg == "nccl" and not tf.config.get_visible_devices("GPU"):
        raise ConfigError(
            "all_reduce_alg=nccl needs GPUs, this run is on the CPU. Use --all_reduce_alg=ring."
        )
    strategy_lib.check_allreduce_dtype(config, bool(tf.config.get_visible_devices("GPU")))
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=_IMPLEMENTATIONS[config.all_reduce_alg]
    )
    patience = heartbeat.Patience(config.peer_timeout_secs, config.peer_silence_secs, config.peer_stall_secs)
    return heartbeat.join(read_cluster(config), options, patience)


def _is_chief(strategy: tf.distribute.Strategy) -> bool:
    # `peers` has made every process a worker: a chief of TF_CONFIG is the first.
    return strategy.cluster_resolver.task_id == 0


BACKEND = Backend(
    strategies=(tf.distribute.MultiWorkerMirroredStrategy,),
    make_strategy=_make_strategy,
    num_replicas=lambda config: strategy_lib.planned_replicas(config) * len(read_cluster(config).hosts),
    is_chief=_is_chief,
    has_peers=True,
    noticing_lost_peers=heartbeat.noticing_lost_peers,
    note_passed=heartbeat.note_passed,
)
