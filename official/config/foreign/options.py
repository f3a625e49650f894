"""Options of Graphcore's command lines that are not settings by another name: what they mean over any
configuration."""

from __future__ import annotations

from official.config.foreign import ipu, rows
from official.config.foreign.families import FAMILIES
from official.config.foreign.pytorch import DATASETS
from official.config.foreign.rows import Row, Table

# Of all their programs. What only one of them has is a key of its files, too, and taken with those.
OPTIONS: Table = {
    "micro_batch_size": Row("@micro", rows.count),
    "gradient_accumulation_count": Row("@accumulation", rows.count),
    "gradient_accumulation": Row("@accumulation", rows.count),
    "gradient_accumulation_factor": Row("@accumulation", rows.count),
    "replication_factor": Row("@replicas", rows.count),
    "replicas": Row("@replicas", rows.count),
    "global_batch_size": Row("@global", rows.count),
    "training_steps": Row("@steps", rows.count),
    "steps": Row("@steps", rows.count),
    "num_train_steps": Row("@steps", rows.count),
    "max_steps": Row("@steps", rows.count),  # Hugging Face's
    "epochs": Row("@epochs", rows.count),
    "num_epochs": Row("@epochs", rows.count),
    "no_model_save": Row("@no_model_save", rows.truth),
    "no_validation": Row("@no_validation", rows.truth),
    "dataset": Row("@dataset", rows.of(DATASETS)),
    "vocab_size": Row("@vocab_size", rows.count),
    "do_training": Row("@do_training", rows.truth),
    "squad_do_validation": Row("@validation", rows.truth),
    "task_name": Row("glue_task", lambda name: str(name).lower()),
    "epochs_inference": Row("predict_epochs", rows.count),
    **rows.ipu_only("use_default_available_memory_proportion"),
    **ipu.OPTIONS,
}


def table_for(family: str | None) -> Table:
    """Returns all options over a configuration of a family; None: over one of ours."""
    return {**(FAMILIES[family].table if family else {}), **OPTIONS}
