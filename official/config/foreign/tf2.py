"""Graphcore's TensorFlow 2 programs: nested JSON files; a nested key is written here with dots."""

from __future__ import annotations

from official.config.foreign import ipu, rows
from official.config.foreign.rows import Row

OPTIMIZERS = {"LAMB": "lamb", "AdamW": "adamw", "Adam": "adam"}
MODELS = {
    "bert-base-uncased": {},
    "bert-large-uncased": {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
    },
}
# What their programs do where a file says nothing.
DEFAULTS = {
    "use_qkv_bias": False,
    "use_projection_bias": False,
    "use_cls_layer": False,
    **ipu.TF2_DEFAULTS,
}
NESTED = ("bert_config", "global_batch", "ipu_config", "optimizer_opts")

_KEYS = {
    "dataset_dir": Row("@dataset_dir", rows.text),
    "max_seq_length": Row("max_seq_length", rows.whole),
    "max_predictions_per_seq": Row("max_predictions_per_seq", rows.whole),
    "global_batch.micro_batch_size": Row("@micro", rows.count),
    "global_batch.replicas": Row("@replicas", rows.count),
    "global_batch.grad_acc_steps_per_replica": Row("@accumulation", rows.count),
    "total_num_train_samples": Row("@samples", rows.count),
    "num_epochs": Row("@epochs", rows.count),
    "optimizer_opts.name": Row("optimizer_type", rows.of(OPTIMIZERS)),
    "optimizer_opts.weight_decay_rate": Row("weight_decay_rate", rows.number),
    "optimizer_opts.loss_scaling": Row("loss_scale", rows.loss_scale),
    "optimizer_opts.learning_rate.schedule_name": Row("lr_schedule", rows.of({"up_down": "up_down"})),
    "optimizer_opts.learning_rate.max_learning_rate": Row("learning_rate", rows.number),
    "optimizer_opts.learning_rate.warmup_frac": Row("@warmup", rows.number),
    "bert_model_name": Row("@model_name", rows.of(MODELS)),
    "use_qkv_bias": Row("model.use_qkv_bias", rows.truth),
    "use_projection_bias": Row("model.use_attention_projection_bias", rows.truth),
    "use_cls_layer": Row("model.use_cls_layer", rows.truth),
    "use_prediction_bias": Row("model.use_prediction_bias", rows.truth),
    "seed": Row("seed", rows.whole),
    "global_batches_per_log": Row("steps_per_loop", rows.whole),
    "ckpt_every_n_steps_per_execution": Row("checkpoint_every_steps", rows.whole),
    "save_ckpt_path": Row("@folder", rows.text),
    "output_dir": Row("@output_folder", rows.text),
    "pretrained_ckpt_path": Row("init_checkpoint"),
    "glue_task": Row("glue_task"),
    "do_training": Row("do_train", rows.truth),
    "do_validation": Row("do_eval", rows.truth),
    "do_test": Row("do_predict", rows.truth),
    "generated_dataset": Row("generated_data", rows.truth),
    "compile_only": Row("compile_only", rows.truth),
    "wandb_project_name": Row("@wandb_project", rows.text),
}
_MODEL = rows.of_model(
    """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act
    hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings type_vocab_size
    initializer_range layer_norm_eps""",
    "bert_config.",
)
_NOT_NEEDED = {
    **rows.not_needed("positions are absolute", "bert_config.position_embedding_type"),
    **rows.not_needed("accuracies are always measured", "show_accuracy"),
    **rows.not_needed("--wandb on the command line sends metrics there",
        "enable_wandb wandb_tags wandb_entity_name"),
    **rows.not_needed("--model_dir names the run, --verbosity says how much is said", "name logging"),
    **rows.not_needed("query, key and value are three variables", "use_qkv_split"),
}  # fmt: skip
_IPU_ONLY = rows.ipu_only("""replace_layers embedding_serialization_factor""")

_PIPELINE = {
    "ipu_config.pipeline_stages": Row("pipeline_stages", rows.stages),
    "ipu_config.pipeline_device_mapping": Row("device_mapping", rows.devices),
}

ROWS = {**_KEYS, **_MODEL, **_PIPELINE, **_NOT_NEEDED, **_IPU_ONLY, **ipu.TF2}
