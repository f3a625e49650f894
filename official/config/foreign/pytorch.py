"""Graphcore's PyTorch programs: YAML files, in which a name has its keys."""

from __future__ import annotations

from official.config.foreign import ipu, rows
from official.config.foreign.rows import Row
from official.config.settings.devices import PIPELINED

# Name of an optimizer -> (ours, whether moments are corrected).
OPTIMIZERS = {
    "LAMB": ("lamb", True),
    "LAMBNoBiasCorrection": ("lamb", False),
    "AdamW": ("adamw", True),
}
SCHEDULES = {"linear": "polynomial", "constant": "constant"}
DATASETS = {"pretraining": ("pretrain", False), "generated": (None, True), "squad": ("squad", False)}
DEFAULTS = {"lr_schedule": "linear"}

_KEYS = {
    "dataset": Row("@dataset", rows.of(DATASETS)),
    "random_seed": Row("seed", rows.whole),
    **rows.of_model(
        """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size layer_norm_eps
        attention_probs_dropout_prob hidden_dropout_prob max_position_embeddings"""
    ),
    "pred_head_transform": Row("model.use_cls_layer", rows.truth),
    "sequence_length": Row("max_seq_length", rows.whole),
    "mask_tokens": Row("max_predictions_per_seq", rows.whole),
    "micro_batch_size": Row("@micro", rows.count),
    "replication_factor": Row("@replicas", rows.count),
    "gradient_accumulation": Row("@accumulation", rows.count),
    "training_steps": Row("@steps", rows.count),
    "num_epochs": Row("@epochs", rows.count),
    "optimizer": Row("@optimizer", rows.of(OPTIMIZERS)),
    "weight_decay": Row("weight_decay_rate", rows.number),
    "learning_rate": Row("learning_rate", rows.number),
    "lr_schedule": Row("@schedule", rows.of(SCHEDULES)),
    "lr_warmup": Row("@warmup_share", rows.number),
    "loss_scaling": Row("loss_scale", rows.loss_scale),
    "auto_loss_scaling": Row("@dynamic_scale", rows.truth),
    "packed_data": Row("@packed_data", rows.truth),
    "packing_factor": Row("@packing_factor"),
    "max_sequences_per_pack": Row("@sequences_per_pack", rows.whole),
    "synthetic_data": Row("synthetic_input", rows.truth),
    "input_files": Row("@files", rows.files),
    "checkpoint_output_dir": Row("@folder", rows.text),
    "pretrained_checkpoint": Row("init_checkpoint"),
    "squad_do_training": Row("do_train", rows.truth),
    "squad_do_validation": Row("@validation", rows.truth),
    "compile_only": Row("compile_only", rows.truth),
    "wandb": Row("wandb", rows.truth),
}
_NOT_NEEDED = {
    **rows.not_needed("data are read in parallel, in an order that the seed decides",
        "dataloader_workers async_dataloader file_buffer_size"),
    **rows.not_needed("--kernels takes operations of our own", "custom_ops"),
    **rows.not_needed("moments are float32", "enable_half_first_order_momentum"),
}  # fmt: skip
_IPU_ONLY = rows.ipu_only("""ipus_per_replica embedding_serialization_factor profile profile_dir""")

_PIPELINE = {"layers_per_ipu": Row("@layers_per_ipu", rows.counts, backends=PIPELINED)}

ROWS = {**_KEYS, **_PIPELINE, **_NOT_NEEDED, **_IPU_ONLY, **ipu.PYTORCH}
