"""Graphcore's TensorFlow 1 programs: flat JSON files, whose keys are the names of the options, too."""

from __future__ import annotations

from official.config.foreign import ipu, rows
from official.config.foreign.rows import Row
from official.config.settings.devices import PIPELINED

OPTIMIZERS = {name: name for name in ("sgd", "momentum", "adam", "adamw", "mpadamw", "lamb")}
SCHEDULES = {
    "polynomial_decay": "polynomial",
    "polynomial": "polynomial",
    "cosine_decay": "cosine",
    "cosine": "cosine",
    "natural_exponential": "natural_exponential",
    "custom": "custom",
}
TASKS = {"pretraining": "pretrain", "SQuAD": "squad", "GLUE": "glue"}

# What their programs do where a file says nothing. `exponential` and `polynomial` as names of a schedule
# are not taken by them.
DEFAULTS = {
    "task": "pretraining",
    "base_learning_rate": 2e-5,
    "optimizer": "momentum",
    "lr_schedule": "polynomial_decay",
    "warmup": 0.1,
    "epsilon": 1e-4,
    "weight_decay_rate": 0.0,
    "use_debiasing": False,
    "use_qkv_bias": False,
    "layer_norm_eps": 1e-3,
    "precision": 16,
    "steps_per_logs": 1,
    **ipu.TF1_DEFAULTS,
}

_BATCH = {
    "micro_batch_size": Row("@micro", rows.count),
    "gradient_accumulation_count": Row("@accumulation", rows.count),
    "replicas": Row("@replicas", rows.count),
    "global_batch_size": Row("@global", rows.count),
    "num_train_steps": Row("@steps", rows.count),
    "epochs": Row("@epochs", rows.count),
    "steps_per_ckpts": Row("checkpoint_every_steps", rows.whole),
    "max_to_keep": Row("keep_checkpoints", rows.whole),
    "steps_per_logs": Row("steps_per_loop", rows.whole),
}
_OPTIMIZATION = {
    "base_learning_rate": Row("learning_rate", rows.number),
    "optimizer": Row("optimizer_type", rows.of(OPTIMIZERS)),
    "momentum": Row("momentum", rows.number),
    "beta1": Row("beta_1", rows.number),
    "beta2": Row("beta_2", rows.number),
    "weight_decay_rate": Row("weight_decay_rate", rows.number),
    "epsilon": Row("epsilon", rows.number),
    "lr_schedule": Row("lr_schedule", rows.of(SCHEDULES)),
    "lr_power": Row("@powers", rows.powers),
    "lr_schedule_by_step": Row("lr_schedule_by_step", rows.as_json),
    "decay_steps": Row("decay_steps", rows.whole),
    "decay_rate": Row("decay_rate", rows.number),
    "warmup": Row("@warmup", rows.number),
    "loss_scaling": Row("loss_scale", rows.loss_scale),
    "loss_scaling_by_step": Row("loss_scale_by_step", rows.as_json),
    "use_debiasing": Row("lamb_bias_correction", rows.truth),
    "use_nvlamb": Row("@nvlamb", rows.truth),
    "use_mpclip": Row("@mpclip", rows.truth),
    "reduction_type": Row("@reduction", rows.of({"mean": "mean", "sum": "sum"})),
    "precision": Row("dtype", rows.of({"16": "fp16", "32": "fp32"})),
}
_MODEL = {
    **rows.of_model(
        """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size hidden_act
        hidden_dropout_prob attention_probs_dropout_prob max_position_embeddings type_vocab_size
        initializer_range layer_norm_eps use_qkv_bias use_attention_projection_bias use_cls_layer
        use_prediction_bias groupbert_ffn_output_groups groupbert_conv_kernel_size
        groupbert_conv_group_size"""
    ),
    "groupbert": Row("@groupbert", rows.truth),
}
_DATA = {
    "task": Row("task", rows.of(TASKS)),
    "task_name": Row("glue_task", lambda name: str(name).lower() or None),
    "seq_length": Row("max_seq_length", rows.whole),
    "max_predictions_per_seq": Row("max_predictions_per_seq", rows.whole),
    "train_file": Row("@files", rows.files),
    "generated_data": Row("generated_data", rows.truth),
    "synthetic_data": Row("synthetic_input", rows.truth),
    "static_mask": Row("static_mask", rows.truth),
    "tfrecord_dir": Row("cache_dir"),
    # Off is what a command line turns on: files hold all three as false.
    "do_training": Row("@do_training", rows.truth_or_unsaid),
    "do_evaluation": Row("do_eval", rows.truth),
    "do_predict": Row("do_predict", rows.truth),
    **rows.same(
        """predict_file doc_stride do_lower_case version_2_with_negative null_score_diff_threshold
        max_query_length n_best_size max_answer_length vocab_file data_dir"""
    ),
}
_RUN = {
    **rows.same("seed init_checkpoint wandb wandb_name"),
    "save_path": Row("@folder", rows.text),
    "output_dir": Row("@output_folder", rows.text),
    "restore_dir": Row("init_checkpoint"),
    "compile_only": Row("compile_only", rows.truth),
}
_NOT_NEEDED = {
    **rows.not_needed("a run goes on from its own --model_dir with all its state",
        "restore_optimiser_from_checkpoint save_optimiser_to_checkpoint"),
    **rows.not_needed("--model_dir names the run and holds its logs, TensorBoard and report",
        "name name_suffix log_dir profile_dir steps_per_tensorboard log_all_workers"),
    **rows.not_needed("progress is shown on terminals", "progress_bar verbose_logging"),
    **rows.not_needed("accuracies are always measured", "disable_acc"),
    **rows.not_needed("optimizer state and rates are float32",
        "increase_optimiser_precision use_lr_fp32"),
    **rows.not_needed("their program does not read it", "weight_norm_clip glue_dropout_prob"),
    **rows.not_needed("query, key and value are three variables", "use_qkv_split"),
    **rows.not_needed("data are read and shuffled in parallel, in an order that the seed decides",
        "parallel_io_threads sloppy_parallel_interleave buffer_size dataset_repeat"),
    **rows.not_needed("it says how the data were made", "duplicate_factor"),
    **rows.not_needed("--use_synthetic_data has its own number of sequences",
        "num_synthetic_dataset_samples"),
}  # fmt: skip
_IPU_ONLY = rows.ipu_only(
    """ipu_replica_identical_seed recomputation_mode matmul_serialize_factor embedded_runtime
    dump_raw_timings num_iter num_inference_thread"""
)

_PIPELINE = {
    "pipeline_stages": Row("pipeline_stages", rows.stages),
    "device_mapping": Row("device_mapping", rows.devices),
    "pipeline_schedule": Row("@pipeline_schedule", rows.of(rows.SCHEDULES), backends=PIPELINED),
}

ROWS = {
    **_BATCH,
    **_OPTIMIZATION,
    **_MODEL,
    **_DATA,
    **_RUN,
    **_PIPELINE,
    **_NOT_NEEDED,
    **_IPU_ONLY,
    **ipu.TF1,
}
