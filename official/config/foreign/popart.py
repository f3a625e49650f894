"""Graphcore's PopART programs: flat JSON files. The packed ones of MLPerf 2.0 have some keys of their own."""

from __future__ import annotations

from official.config.foreign import ipu, rows
from official.config.foreign.rows import Row
from official.config.settings.devices import PIPELINED

# Name of an optimizer -> (ours, whether moments are corrected).
OPTIMIZERS = {
    "LAMB": ("lamb", True),
    "LAMB_NO_BIAS": ("lamb", False),
    "ADAM": ("adamw", True),
    "ADAM_NO_BIAS": ("adamw", False),
}
TASKS = {"PRETRAINING": "pretrain", "SQUAD": "squad"}
TYPES = {"FLOAT16": "fp16", "FLOAT": "fp32"}
DEFAULTS = {"task": "PRETRAINING"}

_KEYS = {
    "task": Row("task", rows.of(TASKS)),
    "num_layers": Row("model.num_hidden_layers", rows.whole),
    "hidden_size": Row("model.hidden_size", rows.whole),
    "attention_heads": Row("model.num_attention_heads", rows.whole),
    "vocab_length": Row("model.vocab_size", rows.whole),
    "layer_norm_eps": Row("model.layer_norm_eps", rows.number),
    "no_cls_layer": Row("model.use_cls_layer", rows.inverse),
    "projection_bias": Row("model.use_prediction_bias", rows.truth),
    "no_dropout": Row("@no_dropout", rows.truth),
    "no_attn_dropout": Row("@no_attention_dropout", rows.truth),
    "dropout_prob": Row("@dropout", rows.number),
    "sequence_length": Row("max_seq_length", rows.whole),
    "mask_tokens": Row("max_predictions_per_seq", rows.whole),
    "popart_dtype": Row("dtype", rows.of(TYPES)),
    "micro_batch_size": Row("@micro", rows.count),
    "global_batch_size": Row("@global", rows.count),
    "replication_factor": Row("@replicas", rows.count),
    "gradient_accumulation_factor": Row("@accumulation", rows.count),
    "training_steps": Row("@steps", rows.count),
    "epochs": Row("@epochs", rows.count),
    "epochs_inference": Row("predict_epochs", rows.count),
    "duplication_factor": Row("@duplication", rows.count),
    "steps_per_log": Row("steps_per_loop", rows.whole),
    "steps_per_save": Row("checkpoint_every_steps", rows.whole),
    "no_model_save": Row("@no_model_save", rows.truth),
    "no_validation": Row("@no_validation", rows.truth),
    "optimizer": Row("@optimizer", rows.of(OPTIMIZERS)),
    "loss_scaling": Row("loss_scale", rows.loss_scale),
    "gradient_reduction_type": Row("@reduction", rows.of({"Mean": "mean", "Sum": "sum"})),
    "beta1": Row("beta_1", rows.number),
    "beta2": Row("beta_2", rows.number),
    "weight_decay": Row("weight_decay_rate", rows.number),
    "learning_rate": Row("learning_rate", rows.number),
    "learning_rate_function": Row("lr_schedule", rows.of({"Linear": "polynomial"})),
    "lr_warmup_steps": Row("@warmup", rows.whole),
    "input_files": Row("@files", rows.files),
    "vocab_file": Row("vocab_file"),
    "do_lower_case": Row("do_lower_case", rows.truth),
    "checkpoint_dir": Row("@folder", rows.text),
    "checkpoint_output_dir": Row("@folder", rows.text),
    "checkpoint_input_dir": Row("init_checkpoint"),
    "onnx_checkpoint": Row("init_checkpoint"),
    "tf_checkpoint": Row("init_checkpoint"),
    "seed": Row("seed", rows.whole),
    "inference": Row("@inference", rows.truth),
    "generated_data": Row("generated_data", rows.truth),
    "synthetic_data": Row("synthetic_input", rows.truth),
    "compile_only": Row("compile_only", rows.truth),
    "wandb": Row("wandb", rows.truth),
    "use_packed_sequence_format": Row("@packs", rows.truth),
    "max_sequences_per_pack": Row("@sequences_per_pack", rows.whole),
    "validation_config.input_files": Row("@predict_files", rows.files),
}
_NOT_NEEDED = {
    **rows.not_needed("a run saves ten times and at its end; --checkpoint_every_steps=N is more",
        "epochs_per_save"),
    **rows.not_needed("metrics of a line are those of its steps",
        "aggregate_metrics_over_steps validation_config.steps_per_log"),
    **rows.not_needed("query, key and value are three variables", "split_qkv split_linear_layers"),
    **rows.not_needed("the rate follows every step", "lr_steps_per_decay_update"),
    **rows.not_needed("a warm-up begins at 0", "lr_warmup_start"),
    **rows.not_needed("records are shuffled by the seed and streamed", "shuffle epochs_to_cache"),
    **rows.not_needed("no example is dropped in an evaluation",
        "no_drop_remainder validation_config.no_drop_remainder"),
    **rows.not_needed("answers lie in --model_dir; scores are computed here",
        "validation_config.squad_results_dir validation_config.squad_evaluate_script"),
}  # fmt: skip
_IPU_ONLY = rows.ipu_only(
    """embedding_serialization_vocab_steps pipeline use_half_optimizer_state squad_wrap_final_layer
    minimum_latency_inference host_embedding use_default_available_memory_proportion max_copy_merge_size
    group_host_syncs validation_config.device_iterations validation_config.squad_wrap_final_layer
    execution_mode low_latency_inference buffering_depth variable_weights_inference
    disable_fully_connected_pass realtime_scheduler report_hw_cycle_count"""
)

_PIPELINE = {
    "encoder_start_ipu": Row("@encoder_start", rows.whole, backends=PIPELINED),
    "layers_per_ipu": Row("@layers_per_ipu", rows.counts, backends=PIPELINED),
}

NESTED = ("validation_config",)
ROWS = {**_KEYS, **_NOT_NEEDED, **_IPU_ONLY, **_PIPELINE, **ipu.POPART}

# ------------------------------------------------------------------------------------------------------------
# MLPerf 2.0: whole packed rows, one more level of JSON for the schedule.

PACKED_NESTED = ("lr_bert_schedule",)
_PACKED_KEYS = {
    "batch_size": Row("@micro", rows.count),
    "use_prepacked_pretraining_dataset": Row("@prepacked", rows.truth),
    "avg_seq_per_pack": Row("average_sequences_per_pack", rows.number),
    "loss_averaging_basis": Row("loss_averaging_basis"),
    "lr_bert_schedule.init_lr": Row("learning_rate", rows.number),
    "lr_bert_schedule.num_training_steps": Row("@steps", rows.count),
    "lr_bert_schedule.num_warmup_steps": Row("@warmup", rows.whole),
    "gradient_clipping_norm": Row("@clip", rows.number),
    "on_the_spot_validation_files": Row("@eval_files", rows.files),
    "submission_division": Row("submission_division"),
    "submission_platform": Row("submission_platform"),
}
_PACKED_NOT_NEEDED = {
    **rows.not_needed("accuracies are those of all predicted tokens", "accuracy_averaging_basis"),
    **rows.not_needed("--stop_steps=N ends a run early", "max_training_sequences"),
    **rows.not_needed("moments are float32", "lamb_accl_dtype"),
}
_PACKED_IPU_ONLY = rows.ipu_only("""activation_checkpoint_dtype reduce_nsp_overhead merge_collectives""")
_PACKED_PIPELINE = {
    "encoder_start_pipeline_stage": Row("@encoder_start", rows.whole, backends=PIPELINED),
    "att_ffn_placement": Row("@placement", rows.placement, backends=PIPELINED),
}
PACKED_ROWS = {**ROWS, **_PACKED_PIPELINE, **_PACKED_KEYS, **_PACKED_NOT_NEEDED, **_PACKED_IPU_ONLY}
