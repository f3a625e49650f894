"""The table of settings. A setting that is not in it does not exist; flags, defaults, types and help text come from it."""

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True)
class Field:
    """One setting.

    Attributes:
      name: of the flag.
      default: None where it is unset.
      help: what it means, for people.
      choices: the allowed values of a string; empty: any.
      minimum, maximum: of a number.
      tasks: the tasks that know it; empty: all. Others refuse a value that is not the default.
      evaluation: whether what an evaluation finds, with the same weights, depends on it, or config ->
        whether. Where it changes, earlier evaluations count no more. None: as its section says.
    """

    name: str
    type: type
    default: Any
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    tasks: tuple[str, ...] = ()
    evaluation: bool | Callable[[Any], bool] | None = None

    def changes_evaluation(self, config) -> bool:
        """Tells whether an evaluation of this configuration depends on the setting."""
        return self.evaluation(config) if callable(self.evaluation) else bool(self.evaluation)


class Section:
    """Settings that belong together.

    Args:
      evaluation: what a row that says nothing means. Sections of what is read and asked say True: a setting
        that is forgotten there costs an evaluation, and not a wrong result.
    """

    def __init__(self, title: str, fields: tuple[Field, ...], evaluation: bool):
        self.title = title
        self.evaluation = evaluation
        self.fields = tuple(
            dataclasses.replace(field, evaluation=evaluation) if field.evaluation is None else field
            for field in fields
        )


_PRETRAIN, _SQUAD, _GLUE, _FINE_TUNING = ("pretrain",), ("squad",), ("glue",), ("squad", "glue")


def _of_random_records(config) -> bool:
    return config.use_synthetic_data


def _of_first_records(config) -> bool:
    return not config.eval_files


def _of_text(config) -> bool:
    return config.task != "pretrain"  # records hold the vocabulary's numbers


SECTIONS = (
    Section(
        "Job",
        (
            Field("task", str, "pretrain", "What is trained.", choices=("pretrain", "squad", "glue")),
            Field("do_train", bool, True, "Train. With --do_train=false --do_eval the run only evaluates."),
            Field("do_eval", bool, False, "Evaluate during training, and always at the last step."),
            Field(
                "do_predict",
                bool,
                False,
                "Fine-tuning: write predictions with the best weights: answers to --predict_file, labels of"
                " the test set.",
                tasks=_FINE_TUNING,
            ),
            Field(
                "model_dir",
                str,
                None,
                "Folder of the run: checkpoints, metrics, result, report. Resumed where it holds a"
                " checkpoint.",
            ),
            Field(
                "init_checkpoint",
                str,
                None,
                "Weights to start from: a checkpoint of this project or a Google TF1 one, as a prefix or a"
                " folder.",
            ),
            Field(
                "seed",
                int,
                12345,
                "Seeds initial weights, data order and dropout.",
                minimum=0,
                maximum=2**31 - 1,
                evaluation=_of_random_records,
            ),
        ),
        evaluation=False,
    ),
    Section(
        "Model",
        (
            Field(
                "bert_config_file",
                str,
                None,
                "JSON file with Google's bert_config.json keys.",
                evaluation=False,
            ),
            Field(
                "vocab_file",
                str,
                None,
                "WordPiece vocabulary of the data: vocab.txt, tokenizer.json, or a folder with one of them;"
                " its size is checked against the model's vocab_size. Kept in --model_dir.",
                evaluation=_of_text,
            ),
            Field(
                "do_lower_case",
                bool,
                None,
                "Text loses its capitals and accents, as an uncased vocabulary wants it. Unset: as"
                " tokenizer_config.json or tokenizer.json says, beside --vocab_file or --init_checkpoint;"
                " else yes.",
                evaluation=_of_text,
            ),
            Field(
                "dtype",
                str,
                "fp32",
                "Compute type. Weights, softmax, LayerNorm statistics, losses and optimizer state stay"
                " float32.",
                choices=("fp32", "fp16", "bf16"),
                evaluation=False,
            ),
        ),
        evaluation=True,
    ),
    Section(
        "Data",
        (
            Field(
                "input_files",
                str,
                None,
                "Training TFRecords: comma-separated files or globs (local, gs://, ram://).",
                tasks=_PRETRAIN,
                evaluation=_of_first_records,
            ),
            Field(
                "eval_files",
                str,
                None,
                "Evaluation TFRecords; without it the first records of --input_files are used, as the MLPerf"
                " v0.7 rules did.",
                tasks=_PRETRAIN,
            ),
            Field(
                "use_synthetic_data",
                bool,
                False,
                "Train on random records of the right shape instead of files.",
            ),
            Field("max_seq_length", int, 128, "Tokens of a sequence.", minimum=8),
            Field(
                "max_predictions_per_seq",
                int,
                20,
                "Masked tokens of a sequence, at most.",
                minimum=1,
                tasks=_PRETRAIN,
            ),
            Field(
                "num_eval_samples", int, 10000, "Evaluate the first N records.", minimum=1, tasks=_PRETRAIN
            ),
        ),
        evaluation=True,
    ),
    Section(
        "Fine-tuning",
        (
            Field(
                "train_file",
                str,
                None,
                "squad: questions to train on, a SQuAD 1.1 or 2.0 JSON file.",
                tasks=_SQUAD,
                evaluation=False,
            ),
            Field(
                "predict_file",
                str,
                None,
                "squad: questions to answer; --do_eval compares with the answers in it.",
                tasks=_SQUAD,
            ),
            Field(
                "version_2_with_negative",
                bool,
                False,
                "squad: some questions have no answer (SQuAD 2.0).",
                tasks=_SQUAD,
            ),
            Field(
                "doc_stride",
                int,
                128,
                "squad: word pieces between the windows of a long context.",
                minimum=1,
                tasks=_SQUAD,
            ),
            Field(
                "max_query_length",
                int,
                64,
                "squad: word pieces of a question, at most.",
                minimum=1,
                tasks=_SQUAD,
            ),
            Field(
                "n_best_size",
                int,
                20,
                "squad: answers of a question in nbest_predictions.json, at most.",
                minimum=1,
                tasks=_SQUAD,
            ),
            Field(
                "max_answer_length",
                int,
                30,
                "squad: word pieces of an answer, at most.",
                minimum=1,
                tasks=_SQUAD,
            ),
            Field(
                "null_score_diff_threshold",
                float,
                0.0,
                "squad, version 2: no answer is given where its score is above that of the best answer by"
                " more than this.",
                tasks=_SQUAD,
            ),
            Field(
                "data_dir",
                str,
                None,
                "glue: folder of the tasks' folders (CoLA, MRPC, ...), or of the one task.",
                tasks=_GLUE,
            ),
            Field(
                "glue_task",
                str,
                None,
                "glue: which task.",
                choices=(
                    "cola",
                    "mnli",
                    "mnli-mm",
                    "ax",
                    "mrpc",
                    "sst2",
                    "stsb",
                    "qqp",
                    "qnli",
                    "rte",
                    "wnli",
                ),
                tasks=_GLUE,
            ),
            Field(
                "cache_dir",
                str,
                None,
                "squad: where features are kept between runs. Unset: features/ in --model_dir.",
                tasks=_SQUAD,
                evaluation=False,
            ),
            Field(
                "length_buckets",
                str,
                "auto",
                "Batches of sequences of about one length, as long as their longest, instead of"
                " --max_seq_length. auto: on CPUs, where no shape is compiled for.",
                choices=("auto", "always", "never"),
                tasks=_FINE_TUNING,
                evaluation=False,
            ),
            Field(
                "num_runs",
                int,
                1,
                "Repeat the run with seeds --seed, --seed + 1, ... in folders run-1, run-2, ...; report mean"
                " and deviation.",
                minimum=1,
                tasks=_FINE_TUNING,
                evaluation=False,
            ),
        ),
        evaluation=True,
    ),
    Section(
        "Batch and steps (a step is one optimizer update)",
        (
            Field(
                "train_batch_size",
                int,
                32,
                "Sequences of one step: all replicas, all micro batches.",
                minimum=1,
            ),
            Field(
                "eval_batch_size",
                int,
                32,
                "Sequences of one evaluation batch over all replicas.",
                minimum=1,
                evaluation=_of_random_records,
            ),
            Field(
                "num_accumulation_steps", int, 1, "Micro batches whose gradients make one step.", minimum=1
            ),
            Field(
                "num_steps_per_epoch",
                int,
                None,
                "Steps of an epoch; times --num_train_epochs it is the horizon of the learning-rate decay."
                " Unset: 1000 for pre-training, once through the data for fine-tuning.",
                minimum=1,
            ),
            Field("num_train_epochs", int, 3, "Epochs of the schedule.", minimum=1),
            Field(
                "stop_steps",
                int,
                None,
                "Train only this many steps of the schedule; the decay horizon stays.",
                minimum=1,
            ),
            Field(
                "steps_per_loop",
                int,
                200,
                "Steps that a line of the metrics sums up. The devices are called for about five seconds at a"
                " time, whatever this says.",
                minimum=1,
            ),
            Field(
                "steps_between_eval",
                int,
                None,
                "Evaluate every N steps; a multiple of --steps_per_loop. Unset: at the last step, for"
                " fine-tuning after each epoch.",
                minimum=1,
            ),
            Field("steps_before_eval_start", int, 0, "No evaluation before this step.", minimum=0),
            Field(
                "stop_threshold",
                float,
                None,
                "Stop when an evaluation reaches this, 0 to 1: masked-LM accuracy, for fine-tuning the task's"
                " main metric.",
                minimum=0,
                maximum=1,
            ),
            Field(
                "checkpoint_every_steps",
                int,
                None,
                "Save every N steps; a multiple of --steps_per_loop. Unset: ten times over the run. Also"
                " saved at the last step.",
                minimum=1,
            ),
            Field(
                "keep_checkpoints",
                int,
                3,
                "Keep this many newest checkpoints; that of the best evaluation is kept, too.",
                minimum=1,
            ),
        ),
        evaluation=False,
    ),
    Section(
        "Optimization",
        (
            Field("optimizer_type", str, "adamw", "Optimizer.", choices=("adamw", "lamb")),
            Field("learning_rate", float, 5e-5, "Peak learning rate.", minimum=0),
            Field("end_learning_rate", float, 0.0, "Learning rate at the end of the decay.", minimum=0),
            Field("poly_power", float, 1.0, "Power of the polynomial decay.", minimum=0),
            Field(
                "warmup_steps",
                float,
                None,
                "Steps of linear warm-up; 0 for none. Unset: 10000 for pre-training, a tenth of the steps for"
                " fine-tuning.",
                minimum=0,
            ),
            Field(
                "warmup_proportion",
                float,
                None,
                "Linear warm-up as a share of all steps, in place of --warmup_steps.",
                minimum=0,
                maximum=1,
            ),
            Field(
                "start_warmup_step",
                int,
                0,
                "First step of the warm-up; the learning rate is 0 before it.",
                minimum=0,
            ),
            Field(
                "decay_from",
                str,
                "step_0",
                "Where the decay is counted from. step_0: the rate drops at the end of the warm-up (the"
                " MLPerf v0.7 reference). warmup_end: it goes on from the peak.",
                choices=("step_0", "warmup_end"),
            ),
            Field(
                "weight_decay_rate",
                float,
                0.01,
                "Decoupled weight decay; not applied to biases and LayerNorm.",
                minimum=0,
            ),
            Field("beta_1", float, 0.9, "Decay rate of the first moment.", minimum=0, maximum=1),
            Field("beta_2", float, 0.999, "Decay rate of the second moment.", minimum=0, maximum=1),
            Field("epsilon", float, 1e-6, "Added to the root of the second moment.", minimum=0),
            Field("clip_norm", float, 1.0, "Global norm that --clip_scope clips gradients to.", minimum=0),
            Field(
                "clip_scope",
                str,
                "global",
                "global: clip the step's gradient after the all-reduce. micro_batch: clip every replica's"
                " micro-batch gradient before it is averaged (the MLPerf v0.7 reference, with"
                " --loss_normalization=local). none: do not clip.",
                choices=("micro_batch", "global", "none"),
            ),
            Field(
                "loss_normalization",
                str,
                "global",
                "global: losses are divided by the weights of the whole step over all replicas. local: by"
                " those of each replica's micro batch, and micro batches are averaged (the MLPerf v0.7"
                " reference).",
                choices=("global", "local"),
            ),
            Field(
                "scale_loss",
                bool,
                False,
                "With --loss_normalization=local: divide each replica's loss by the number of replicas, so"
                " that the all-reduced gradient is a mean and not a sum.",
            ),
            Field("loss_scale", str, None, "dynamic or a number. Unset: dynamic for fp16, none otherwise."),
        ),
        evaluation=False,
    ),
    Section(
        "Devices",
        (
            Field(
                "distribution_strategy",
                str,
                "mirrored",
                "How replicas are made.",
                choices=("one_device", "mirrored", "multi_worker_mirrored", "tpu"),
            ),
            Field(
                "num_gpus",
                int,
                None,
                "GPUs to use; 0 for the CPU. Unset: all GPUs there are, else the CPU.",
                minimum=0,
            ),
            Field(
                "num_virtual_devices",
                int,
                None,
                "Replicas on this many logical CPUs (mirrored), to rehearse a multi-device job.",
                minimum=1,
            ),
            Field("tpu", str, None, "TPU name, grpc:// address or local, for --distribution_strategy=tpu."),
            Field(
                "num_tpu_cores",
                int,
                None,
                "Cores that the TPU is to have: the batch arithmetic is checked before connecting, the number"
                " after it.",
                minimum=1,
            ),
            Field(
                "worker_hosts",
                str,
                None,
                "Comma-separated host:port of all processes, for multi_worker_mirrored; without it TF_CONFIG"
                " says so.",
            ),
            Field("task_index", int, None, "Number of this process in --worker_hosts, from 0.", minimum=0),
            Field(
                "peer_timeout_secs",
                int,
                300,
                "multi_worker_mirrored: how long to wait for the other processes to start; exit code 4"
                " after it.",
                minimum=1,
                maximum=86400,
            ),
            Field(
                "all_reduce_alg",
                str,
                None,
                "All-reduce: nccl or hierarchical_copy (mirrored), nccl or ring (multi_worker_mirrored)."
                " Unset: TensorFlow's choice.",
                choices=("nccl", "hierarchical_copy", "ring"),
            ),
            Field(
                "explicit_allreduce",
                bool,
                False,
                "Join gradients into packs of --allreduce_bytes_per_pack and all-reduce each pack; without it"
                " TensorFlow chooses how. Needs --clip_scope=global or none.",
            ),
            Field(
                "allreduce_bytes_per_pack",
                int,
                0,
                "With --explicit_allreduce: bytes of a pack, at most; a larger gradient is a pack of its own."
                " 0: one pack.",
                minimum=0,
            ),
            Field(
                "deterministic",
                bool,
                False,
                "Choose deterministic kernels only: the same command gives the same bits on the same machine;"
                " slower.",
            ),
            Field(
                "fused_ops",
                bool,
                True,
                "Take the encoder's blocks with gradients of their own, compiled in part, and optimizers in"
                " few passes over memory; without it TensorFlow's operations and tensorflow-addons'"
                " optimizers (where it is not installed: our own of TensorFlow's operations), equal to rounding.",
            ),
            Field(
                "intra_op_threads",
                int,
                None,
                "CPU threads that one operation is shared out to. Unset: one a core.",
                minimum=1,
            ),
            Field(
                "inter_op_threads",
                int,
                None,
                "CPU threads that run operations side by side. Unset: one a core; 1 and 2 on two cores were"
                " measured to be the same.",
                minimum=1,
            ),
            Field("enable_xla", bool, False, "Compile the forward and backward pass with XLA."),
            Field(
                "device_warmup",
                bool,
                False,
                "Compile the training and the evaluation step on synthetic data before the clock starts;"
                " leaves all state bit-equal.",
            ),
        ),
        evaluation=False,
    ),
    Section(
        "MLPerf",
        (
            Field(
                "eval_rule",
                str,
                None,
                "Evaluate by a published rule, which fills in do_eval, steps_between_eval,"
                " steps_before_eval_start, steps_per_loop, num_eval_samples and stop_threshold. mlperf_0.7:"
                " from 3,000,000 sequences on, every 500,000, first 10,000 records, 0.712 (0.706 from a batch"
                " of 8192). mlperf_1.0: every floor(0.05 * (230.23 * batch + 3,000,000) / 25,000) * 25,000"
                " sequences, 10,000 records of --eval_files, 0.720.",
                choices=("mlperf_0.7", "mlperf_1.0"),
                tasks=_PRETRAIN,
            ),
            Field(
                "mllog_file",
                str,
                None,
                "Where the MLPerf log is written. Unset: mllog.txt in --model_dir.",
                tasks=_PRETRAIN,
            ),
            Field(
                "mllog_to_stdout",
                bool,
                False,
                "Write the MLPerf log's lines to stdout, too.",
                tasks=_PRETRAIN,
            ),
            Field(
                "clear_caches",
                bool,
                True,
                "Drop the local data files from the operating system's page cache before training, as MLPerf"
                " asks (the log's cache_clear).",
            ),
            Field("submission_org", str, "unspecified", "MLPerf log: organisation."),
            Field(
                "submission_platform",
                str,
                None,
                "MLPerf log: platform. Unset: kind and number of the devices, e.g. gpu-8.",
            ),
            Field("submission_division", str, "closed", "MLPerf log: division.", choices=("closed", "open")),
            Field(
                "submission_status",
                str,
                "research",
                "MLPerf log: status.",
                choices=("cloud", "onprem", "preview", "research"),
            ),
        ),
        evaluation=False,
    ),
    Section(
        "Plan",
        (
            Field(
                "plan",
                bool,
                False,
                "Print what the run would be (sizes, memory, steps, evaluations, time) and stop. Needs no"
                " data and no devices.",
            ),
            Field("plan_file", str, None, "With --plan: also write it as JSON."),
            Field(
                "plan_tflops",
                float,
                None,
                "With --plan: expected TFLOP/s of one replica's matrix products, for the expected time.",
                minimum=0,
            ),
            Field(
                "plan_gbps",
                float,
                None,
                "With --plan: expected GB/s of one replica's all-reduce traffic, for the expected time.",
                minimum=0,
            ),
        ),
        evaluation=False,
    ),
    Section(
        "Messages",
        (
            Field(
                "verbosity",
                int,
                0,
                "-1 warnings only, 0 progress, 1 debug: configuration and parameters, too.",
                minimum=-1,
                maximum=3,
            ),
            Field(
                "wandb",
                bool,
                False,
                "Send metrics to Weights & Biases, too (pip install 'bert-tf2[wandb]'; WANDB_MODE=offline"
                " keeps them here).",
            ),
            Field("wandb_project", str, None, "With --wandb: project. Unset: bert-tf2."),
            Field(
                "wandb_name",
                str,
                None,
                "With --wandb: name of the run. Unset: the name of --model_dir's folder.",
            ),
        ),
        evaluation=False,
    ),
)
FIELDS = {field.name: field for section in SECTIONS for field in section.fields}
