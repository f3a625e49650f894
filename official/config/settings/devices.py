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
      bert_config_file: JSON file with Google's bert_config.json keys.
      vocab_file: WordPiece vocabulary of the data: vocab.txt, tokenizer.json, or a folder with one of them;
        its size is checked against the model's vocab_size. Kept in --model_dir.
      fit_vocabulary: The vocabulary may have up to 127 words more or fewer than the model's vocab_size, as
        Graphcore's models of 30,400 and 30,528 rows have: words beyond it are unknown ones, in records, too
        ([UNK] is word 100 there, as in Google's vocabularies, unless --vocab_file says another).
      do_lower_case: Text loses its capitals and accents, as an uncased vocabulary wants it. Unset: as
        tokenizer_config.json or tokenizer.json says, beside --vocab_file or --init_checkpoint; else yes.
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
      distribution_strategy: How replicas are made. Unset where this process is one of several that train:
        multi_worker_mirrored.
      num_gpus: GPUs to use; 0 for the CPU. Unset: all GPUs there are; the CPU on a machine without.
      gpu_memory: Memory that the run takes of each GPU: grow takes it as it is needed, all takes all of it at
        the start, and a number is the GB (1e9 bytes, 7.5 is one) that it grows to at most. The driver's and
        the libraries' own memory, some hundred MB, comes on top.
      num_virtual_devices: Logical CPUs, to rehearse a job of several devices: a replica each (mirrored), or
        the devices of the stages (pipeline).
      tpu: TPU name, grpc:// address or local, for --distribution_strategy=tpu.
      num_tpu_cores: Cores that the TPU is to have: the batch arithmetic is checked before connecting, the
        number after it.
      worker_hosts: Comma-separated host:port of all processes, for multi_worker_mirrored; without it what
        started them says so: TF_CONFIG, Kubernetes, Slurm, MPI (docs/clusters.md). That of the first process
        alone where MPI, Slurm or Kubernetes give numbers: all learn each other's addresses through it.
      task_index: Number of this process in --worker_hosts, from 0.
      peer_timeout_secs: multi_worker_mirrored: how long to wait for the other processes to start, and six
        times as long for one that is there but does not go on, such as for storage that hangs; exit code 4
        after it. One that is silent, because its machine is down, is waited for a fifth as long, a minute at
        most; one that has ended is noticed at once.
      all_reduce_alg: All-reduce: nccl or hierarchical_copy (mirrored), nccl or ring (multi_worker_mirrored).
        Unset: TensorFlow's choice.
      allreduce_dtype: Type in which the replicas' gradients are sent and added up: bfloat16 and float16 take
        half the bytes, and round every sum. float16 needs a loss scale, which sees its overflows.
      explicit_allreduce: Join gradients into packs of --allreduce_bytes_per_pack and all-reduce each pack;
        without it TensorFlow chooses how. Needs --clip_scope=global or none.
      allreduce_bytes_per_pack: With --explicit_allreduce: bytes of a pack, at most; a larger gradient is a
        pack of its own. Packs are sent while the backward pass goes on. 0: one pack, after it.
      deterministic: Choose deterministic kernels only: the same command gives the same bits on the same
        machine; slower.
      kernels: What computes between matrix products, and updates the weights with LAMB, AdamW or Adam: plain
        is TensorFlow's operations and gradients; fused has derived gradients and functions that XLA compiles;
        native is C++ for CPUs, compiled when it is first used on a machine. auto: native on CPUs where there
        is a C++ compiler and --enable_xla is off, else fused; plain on GPUs where XLA does not work. Equal
        to rounding.
      recompute: What the backward pass computes again, so that less memory is kept for it: `attention` is the
        softmax and dropout of attention, `block` whole blocks, of which only the input is kept. The masks are
        the same.
      unpad: Compute nothing for padding: the tokens of a batch stand end to end, in training, evaluation and
        prediction. Losses are those of padded rows, to rounding; dropout's masks are others. Packed rows have
        little padding, and steps that are compiled as a whole have one size: both are refused.
      enable_xla: Compile the forward and backward pass with XLA. Unset: on GPUs, where that halves the time
        of a step, unless --unpad or --length_buckets=always make steps of several sizes.
      device_warmup: Compile the training and the evaluation step on synthetic data before the clock starts;
        leaves all state bit-equal.
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
    )
    explicit_allreduce: bool = setting(
        False, backends=WHOLE, only_with=("clip_scope", ("global", "replicas", "none"))
    )
    allreduce_bytes_per_pack: int = setting(0, minimum=0, needs=("explicit_allreduce",))
    deterministic: bool = setting(False)
    kernels: str = setting("auto", choices=("auto", "plain", "fused", "native"))
    recompute: str = setting(
        "none",
        choices=("none", "attention", "block"),  # each keeps less than those before it
    )
    unpad: bool = setting(
        False,
        backends=REPLICATED,
        excludes={
            **dict.fromkeys(("pack", "pack_on_the_fly"), "which fills rows, and leaves no padding"),
            "enable_xla": "which takes batches of one size",
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
      pipeline_stages: Number of stages, which are then balanced, or what each holds: emb+pos / hid*12 /
        hid*12 / mlm+nsp.
      device_mapping: Device of each stage, from 0 within a replica: 0,1,2,3,0. Unset: one a stage; on IPUs
        the heads are with the embeddings.
      pipeline_schedule: What a device does next: 1f1b or gpipe; on IPUs grouped, interleaved or sequential.
        Unset: the first of them.
      ipu_options: Options of IPUs, such as "replicas=4 device_iterations=8"; docs/ipu.md has them all. Those
        of the command line stand over those of --config, each by its name.
    """

    pipeline_stages: str | None = setting(None, backends=PIPELINED)
    device_mapping: str | None = setting(None, backends=PIPELINED)
    pipeline_schedule: str | None = setting(
        None, choices=tuple(name for names in SCHEDULES.values() for name in names), backends=PIPELINED
    )
    ipu_options: str | None = setting(None, backends=IPU)


PIPELINE = Section("Pipeline", Pipeline, evaluation=False)
