"""Older spellings of the keys of Graphcore's files, and the programs of theirs whose files are not read."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from official.config.foreign.rows import Table
from official.io.errors import ConfigError

# Family -> {key of an earlier version of its program: key of today}.
OLDER: dict[str, dict[str, str]] = {
    "tf1": {
        "batch_size": "micro_batch_size",
        "batches_per_step": "device_iterations",
        "do_eval": "do_evaluation",
    },
    "tf2": {  # that of SDK 2.4, with other nesting
        "cache_dir": "dataset_dir",
        "bert_config.max_seq_length": "max_seq_length",
        "bert_config.max_predictions_per_seq": "max_predictions_per_seq",
        "micro_batch_size": "global_batch.micro_batch_size",
        "replicas": "global_batch.replicas",
        "grad_acc_steps_per_replica": "global_batch.grad_acc_steps_per_replica",
        "pipeline_stages": "ipu_config.pipeline_stages",
        "device_mapping": "ipu_config.pipeline_device_mapping",
        "matmul_available_memory_proportion_per_pipeline_stage": (
            "ipu_config.matmul_available_memory_proportion_per_pipeline_stage"
        ),
        "replicated_tensor_sharding": "ipu_config.replicated_tensor_sharding",
        "loss_scaling": "optimizer_opts.loss_scaling",
        "optimizer_opts.params.weight_decay_rate": "optimizer_opts.weight_decay_rate",
        "learning_rate.lr_schedule": "optimizer_opts.learning_rate.schedule_name",
        "learning_rate.lr_schedule_params.max_learning_rate": (
            "optimizer_opts.learning_rate.max_learning_rate"
        ),
        "learning_rate.lr_schedule_params.warmup_frac": "optimizer_opts.learning_rate.warmup_frac",
        "wandb_opts.log_to_wandb": "enable_wandb",
        "wandb_opts.init.project": "wandb_project_name",
        "wandb_opts.init.tags": "wandb_tags",
        "wandb_opts.init.notes": "wandb_tags",
        "wandb_opts.init.name": "name",
    },
    "popart": {
        "batches_per_step": "device_iterations",
        "validation_config.batches_per_step": "validation_config.device_iterations",
    },
    "pytorch": {"batch_size": "micro_batch_size", "batches_per_step": "device_iterations"},
}
OLDER["packed"] = OLDER["popart"]

# (Program, what its files hold and no others: a key, as a pattern, and its values, any where there are none).
_UNREAD: tuple[tuple[str, str, tuple], ...] = (
    ("PopART with phased execution", r"execution_mode", ("PHASED", "PINGPONG")),
    ("PopART with phased execution", r"layers_per_phase|batch_serialize", ()),
    (
        "PopART on mk1, whose pipelines update weights after every micro batch",
        r"continuous_pipeline_optimizer_scaling|pipeline_(lr|momentum)_scaling",
        (True,),
    ),
    ("PopART on mk1, with its SGD", r"velocity_scaling|dampening", ()),
    ("PopXL", r"model\.layers|training\.global_batch_size|execution\.micro_batch_size", ()),
)


def with_older(family: str, table: Table) -> Table:
    """Returns a family's table with its older spellings beside the keys that they mean."""
    return {**{old: table[new] for old, new in OLDER[family].items()}, **table}


def check_program(values: Mapping[str, Any], source: str) -> None:
    """Raises ConfigError for a file of a program of Graphcore's that is not read.

    Args:
      values: of the file, with dots in nested keys.
      source: names it in messages.
    """
    for program, pattern, meant in _UNREAD:
        for key, value in values.items():
            if re.fullmatch(rf"(.*\.)?({pattern})", key) and (not meant or value in meant):
                raise ConfigError(
                    f"{source}: {key}={value!r} is of Graphcore's {program}, whose files are not read."
                    " Read are those of TensorFlow 1, TensorFlow 2, PyTorch, MLPerf 2.0 and PopART with"
                    " pipelines."
                )
