"""Settings: what only IPUs know, by Graphcore's names where these have one."""

from __future__ import annotations

import dataclasses

from official.config.setting import Section, setting

_IPU = ("ipu",)


@dataclasses.dataclass(frozen=True)
class Ipu:
    """Settings of IPUs alone. The number of IPUs of a replica follows from its pipeline: a power of two."""

    ipu_replicas: int = setting(
        1, "Replicas of the pipeline, over all instances: a power of two.", minimum=1, backends=_IPU
    )
    ipu_connection: str = setting(
        "always",
        "always: take the IPUs at once. on_demand: wait until there are some. pre_compile: compile for IPUs"
        " that are not here, into --executable_cache_path. never: compile only, to see that it compiles.",
        choices=("always", "on_demand", "pre_compile", "never"),
        backends=_IPU,
    )
    ipu_version: str = setting(
        "ipu2",
        "With --ipu_connection=pre_compile or never: which IPUs to compile for.",
        choices=("ipu1", "ipu2", "ipu21"),
        backends=_IPU,
    )
    device_iterations: int = setting(
        1, "Steps of one call of the IPUs; divides --steps_per_loop.", minimum=1, backends=_IPU
    )
    executable_cache_path: str | None = setting(
        None, "Folder in which compiled programs are kept and looked for.", backends=_IPU
    )
    stochastic_rounding: bool = setting(
        True, "Round to float16 up or down at random, right on average.", backends=_IPU
    )
    fp_exceptions: bool = setting(
        False, "Stop at invalid operations, divisions by 0 and overflows.", backends=_IPU
    )
    available_memory_proportion: str | None = setting(
        None,
        "Share of an IPU's memory that matrix products may take for themselves: a number for all, or one for"
        " each stage of the pipeline or each IPU of a replica, comma-separated. Unset: Poplar's own.",
        backends=_IPU,
    )
    partials_type: str = setting(
        "float", "Type in which matrix products of float16 add up.", choices=("half", "float"), backends=_IPU
    )
    optimizer_state_offchip: bool = setting(
        True, "Keep what only the optimizer reads in the memory beside the IPUs.", backends=_IPU
    )
    replicated_tensor_sharding: bool = setting(
        False, "Share that state out to the replicas; each reads and updates its part.", backends=_IPU
    )
    min_remote_tensor_size: int = setting(
        128, "Bytes of a tensor that is kept beside the IPUs, at least.", minimum=0, backends=_IPU
    )
    max_cross_replica_sum_buffer_size: int = setting(
        0,
        "Bytes of gradients that are added up across replicas at once; 0: one by one.",
        minimum=0,
        backends=_IPU,
    )
    max_reduce_scatter_buffer_size: int = setting(
        0, "The same for gradients whose optimizer state is shared out.", minimum=0, backends=_IPU
    )
    no_outlining: bool = setting(
        False, "Compile equal parts of the model each by itself: more memory, less copying.", backends=_IPU
    )
    scheduler: str = setting(
        "choose_best",
        "How the compiler orders operations.",
        choices=("choose_best", "clustering", "post_order", "look_ahead", "shortest_path"),
        backends=_IPU,
    )
    sync_replicas_independently: bool = setting(
        False, "Let replicas talk to the host without waiting for each other.", backends=_IPU
    )
    memory_profile: bool = setting(
        False,
        "Write Poplar's report of the memory of each tile, also where it does not suffice.",
        backends=_IPU,
    )
    execution_profile: bool = setting(
        False, "The same with the cycles of each step; needs IPUs.", backends=_IPU
    )
    profile_dir: str | None = setting(None, "Folder of both reports. Unset: --model_dir.", backends=_IPU)


SECTION = Section("IPUs", Ipu, evaluation=False)
