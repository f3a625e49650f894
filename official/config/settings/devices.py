"""Settings of the model and of the devices: kernels, precision, strategy, pipeline, IPUs."""

from __future__ import annotations

import dataclasses

from official.config.backends import BACKENDS
from official.config.setting import (
    IDENTITY,
    IPU,
    PIPELINED,
    RECIPE,
    REPLICATED,
    TPU,
    TRACED,
    WHOLE,
    WORKERS,
    Section,
    setting,
)

# -----------------------------------------------------------------------------------------------------------
# Model


@dataclasses.dataclass(frozen=True)
class Model:
    """The parts of a run that are built.

    Of a run that has begun, the sizes of its model and the vocabulary that its folder keeps are compared, and
    not the files that they come from.

    Attributes:
      bert_config_file: JSON file with Google's bert_config.json keys. Unset: the sizes in the folder of
        --init_checkpoint.
      vocab_file: WordPiece vocabulary of the data: vocab.txt, tokenizer.json, or a folder with one of them;
        its size is checked against the model's vocab_size; the one in a model's own folder may have fewer
        words. Kept in --model_dir. Unset: that of the folder of --init_checkpoint.
      fit_vocabulary: Allow the vocabulary to have up to 127 words more or fewer than the model's vocab_size,
        as for Graphcore's models with 30,400 and 30,528 rows. Words beyond vocab_size are read as [UNK], also
        in records (id 100, as in Google's vocabularies, unless --vocab_file has another).
      do_lower_case: Lower-case the text and strip accents, for uncased vocabularies. Unset: from the
        tokenizer_config.json or tokenizer.json in the folder of --vocab_file or --init_checkpoint, otherwise
        true.
      dtype: Compute type. Weights, softmax, LayerNorm statistics, losses and optimizer state stay float32.
    """

    bert_config_file: str | None = setting(None, evaluation=False, files=True)
    vocab_file: str | None = setting(None, evaluation=lambda config: config.task != "pretrain", files=True)
    fit_vocabulary: bool = setting(False, training=IDENTITY)
    do_lower_case: bool | None = setting(None, evaluation=lambda config: config.task != "pretrain")
    dtype: str = setting("fp32", choices=("fp32", "fp16", "bf16"), evaluation=False, training=RECIPE)


MODEL = Section("Model", Model, evaluation=True)


# -----------------------------------------------------------------------------------------------------------
# Devices


@dataclasses.dataclass(frozen=True)
class Devices:
    """Settings of the devices, and of how they compute.

    Attributes:
      distribution_strategy: Kind and number of devices. Unset in one of several processes that train
        together: multi_worker_mirrored.
      num_gpus: GPUs to use; 0 for the CPU. Unset: all GPUs, or the CPU on a machine without GPUs.
      gpu_memory: Memory to take of each GPU. grow: as needed. all: everything at the start. A number: as
        needed, up to this many GB (1e9 bytes, such as 7.5). The driver's and the libraries' own memory, some
        hundred MB, comes on top.
      num_virtual_devices: Split the CPU into this many logical devices, to rehearse a job on several devices:
        one replica each (mirrored), or the devices of the stages (pipeline).
      tpu: TPU name, grpc:// address or local, for --distribution_strategy=tpu.
      num_tpu_cores: Expected number of TPU cores: the batch sizes are checked with it before connecting, the
        number itself afterwards.
      worker_hosts: Comma-separated host:port of all processes, for multi_worker_mirrored. Unset: read from
        the launcher's variables: TF_CONFIG, Kubernetes, Slurm, MPI (docs/clusters.md). With MPI, Slurm or
        Kubernetes the address of rank 0 is enough: all processes exchange their addresses there.
      task_index: Index of this process in --worker_hosts, from 0.
      peer_timeout_secs: multi_worker_mirrored: how long to wait for the other processes at the start; then
        the run ends with exit code 4. A process that is alive but makes no progress (such as with hanging
        storage) is given six times as long, one that sends no heartbeat a fifth as long, at most a minute;
        one that has ended is noticed at once.
      all_reduce_alg: All-reduce algorithm: nccl or hierarchical_copy (mirrored), nccl or ring
        (multi_worker_mirrored). Unset: TensorFlow's choice.
      allreduce_dtype: Type in which the replicas' gradients are sent and summed. bfloat16 and float16 halve
        the bytes, and round every sum. float16 needs a loss scale, which detects its overflows.
      explicit_allreduce: All-reduce gradients in packs of --allreduce_bytes_per_pack instead of as TensorFlow
        chooses. Not with --clip_scope=micro_batch.
      allreduce_bytes_per_pack: With --explicit_allreduce: maximum bytes per pack; a larger gradient is a
        separate pack. Packs are sent during the backward pass. 0: one pack after it.
      deterministic: Use deterministic kernels only: the same command gives the same bits on the same machine.
        Slower.
      kernels: Implementation of the operations between matrix products, and of the LAMB, AdamW and Adam
        updates. plain: TensorFlow operations. fused: hand-written gradients in functions compiled by XLA.
        native: C++ for CPUs, compiled on first use. auto: native on CPUs if there is a C++ compiler and
        --enable_xla is off, otherwise fused; plain on GPUs where XLA does not work. All are equal up to
        rounding.
      recompute: Activations that the backward pass recomputes to save memory. attention: the softmax and
        dropout of attention. block: whole blocks, of which only the input is stored. Dropout masks are the
        same.
      unpad: Skip padding in training, evaluation and prediction by concatenating the tokens of a batch.
        Losses equal those of padded rows up to rounding; dropout masks differ. Refused with packed rows,
        which have little padding, and with steps that are compiled as a whole, which have a fixed size.
      enable_xla: Compile the forward and backward pass with XLA. Unset: on GPUs, where it halves the time of
        a step, unless --unpad or --length_buckets=always vary the size of steps.
      device_warmup: Compile the training and evaluation steps on synthetic data before the clock starts;
        leaves all state bit-identical.
    """

    distribution_strategy: str = setting("mirrored", choices=tuple(BACKENDS))
    num_gpus: int | None = setting(None, minimum=0)
    gpu_memory: str = setting(
        "grow", backends=TRACED, excludes={"num_virtual_devices": "GPUs, or logical CPUs"}
    )
    num_virtual_devices: int | None = setting(
        None,
        minimum=1,
        backends=("mirrored", "pipeline"),
        excludes={
            "num_gpus": "GPUs, or logical CPUs",
            "all_reduce_alg=nccl": "for GPUs; hierarchical_copy is for both",
        },
    )
    tpu: str | None = setting(None, backends=TPU)
    num_tpu_cores: int | None = setting(None, minimum=1, backends=TPU)
    worker_hosts: str | None = setting(None, backends=WORKERS)
    task_index: int | None = setting(None, minimum=0, backends=WORKERS)
    peer_timeout_secs: int = setting(300, minimum=1, maximum=86400)
    all_reduce_alg: str | None = setting(None, choices=("nccl", "hierarchical_copy", "ring"))
    allreduce_dtype: str = setting(
        "float32",
        choices=("float32", "bfloat16", "float16"),
        backends=("mirrored", "multi_worker_mirrored", "tpu"),
        training=RECIPE,
    )
    explicit_allreduce: bool = setting(
        False, backends=WHOLE, only_with=("clip_scope", ("global", "replicas", "none"))
    )
    allreduce_bytes_per_pack: int = setting(0, minimum=0, needs=("explicit_allreduce",))
    deterministic: bool = setting(False)
    kernels: str = setting("auto", choices=("auto", "plain", "fused", "native"))
    recompute: str = setting(
        "none",
        choices=("none", "attention", "block"),  # each keeps less than the previous one
    )
    unpad: bool = setting(
        False,
        backends=REPLICATED,
        excludes={
            **dict.fromkeys(("pack", "pack_on_the_fly"), "which fills rows, and leaves no padding"),
            "enable_xla": "which needs batches of one size",
        },
    )
    enable_xla: bool | None = setting(None, backends=WHOLE)
    device_warmup: bool = setting(False)


DEVICES = Section("Devices", Devices, evaluation=False)


# -----------------------------------------------------------------------------------------------------------
# Pipeline


SCHEDULES = {"pipeline": ("1f1b", "gpipe"), "ipu": ("grouped", "interleaved", "sequential")}


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """Settings of the placement of a model's parts on devices, and of IPUs.

    Attributes:
      pipeline_stages: Number of stages, over which the layers are balanced, or the parts of each stage:
        emb+pos / hid*12 / hid*12 / mlm+nsp.
      device_mapping: Device of each stage, from 0 within a replica: 0,1,2,3,0. Unset: one device per stage;
        on IPUs the heads share the device of the embeddings.
      pipeline_schedule: Order of forward and backward passes: 1f1b or gpipe; on IPUs grouped, interleaved or
        sequential. Unset: the first of these.
      ipu_options: Options of IPUs, such as "replicas=4 device_iterations=8"; docs/ipu.md lists them. Options
        on the command line override those of --config one by one.
    """

    pipeline_stages: str | None = setting(None, backends=PIPELINED)
    device_mapping: str | None = setting(None, backends=PIPELINED)
    pipeline_schedule: str | None = setting(
        None, choices=tuple(name for names in SCHEDULES.values() for name in names), backends=PIPELINED
    )
    ipu_options: str | None = setting(None, backends=IPU)


PIPELINE = Section("Pipeline", Pipeline, evaluation=False)
