"""Steps of BERT that others measured and published, as facts: who, on what, how fast."""

from __future__ import annotations

from typing import NamedTuple


class Device(NamedTuple):
    """A device as its maker describes it.

    Attributes:
      name: of it.
      peak_tflops: of matrix products, in the type that the runs compute in.
      gb_per_sec: that it sends to its neighbours, each way.
      source: of both.
    """

    name: str
    peak_tflops: float
    gb_per_sec: float
    source: str


V100 = Device("V100", 125.0, 150.0, "NVIDIA's data sheet of the V100 SXM2: NVLink 300 GB/s, both ways")
TPU_V3_CORE = Device(
    "TPU v3 core",
    123 / 2,
    340e3 / 2048,
    "cloud.google.com/tpu/docs/v3: 123 TFLOP/s a chip of two cores, all-reduce 340 TB/s for 1,024 chips",
)
IPU = Device(
    "IPU Mk2",
    250.0,
    350 / 4,
    "Graphcore's announcement of the GC200 and the M2000 (July 2020): 250 TFLOP/s in float16, 2.8 Tbit/s for"
    " four IPUs",
)


class PublishedRun(NamedTuple):
    """A run that was published.

    Attributes:
      name: for tables.
      config: its configuration here.
      device: that it ran on.
      devices_per_replica: how many of them are a replica.
      accumulation: micro batches of a step. Plans of pipelines take multiples of their passes.
      sequences_per_sec: of training, as published.
      samples: sequences up to the target; None: it had none.
      minutes: that it took to the target, as published; None: it had none.
      source: of the speed.
    """

    name: str
    config: str
    device: Device
    devices_per_replica: int
    accumulation: int
    sequences_per_sec: float
    samples: int | None
    minutes: float | None
    source: str


class _Pod(NamedTuple):
    """A log of a pod in MLPerf 2.0: IPUs, micro batches of a step, the log, sequences that it trained on,
    seconds of all its blocks of training, seconds to the target."""

    ipus: int
    accumulation: int
    log: str
    samples: int
    block_secs: float
    target_secs: float

    def run(self) -> PublishedRun:
        """Returns its run, whose speed is all sequences over the seconds of all blocks of training."""
        return PublishedRun(
            f"{self.ipus} IPUs, large, 512, packed",
            f"graphcore/packed/pod{self.ipus}-closed.json",
            IPU,
            8,
            self.accumulation,
            self.samples / self.block_secs,
            self.samples,
            self.target_secs / 60,
            f"training_results_v2.0: Graphcore/results/ipu-pod{self.ipus}-POPART-closed/bert/{self.log}",
        )


_V07 = "MLPerf v0.7, Google's TensorFlow 2 logs: the median block"
_TUTORIAL = "Graphcore's tutorial of Kubernetes, the log of its job"
_V100 = PublishedRun("8 V100, large, 512", "mlperf_v100_logs", V100, 1, 11, 257.5, 3_001_680, 196.41, _V07)
_TPU = PublishedRun(
    "TPU v3-32, large, 512", "mlperf_tpu_v3_32_logs", TPU_V3_CORE, 1, 1, 972.8, 3_252_704, 56.74, _V07
)
_FOUR = ("4 IPUs, base, 128", "graphcore/pytorch/pretrain_base_128_pod4.yml", IPU, 4, 2048, 4035.0)
_MANY = ("64 IPUs, large, 128", "graphcore/pytorch/pretrain_large_128_POD64.yml", IPU, 4, 512, 17692.1)
RUNS = (
    _V100,
    _TPU,
    PublishedRun(*_FOUR, None, None, _TUTORIAL),
    PublishedRun(*_MANY, None, None, _TUTORIAL),
    _Pod(16, 256, "result_2.txt", 2_976_795, 1289.571, 1321.471).run(),
    _Pod(64, 96, "result_0.txt", 3_004_339, 418.658, 436.618).run(),
    _Pod(128, 64, "result_1.txt", 3_260_696, 252.667, 264.857).run(),
    _Pod(256, 36, "result_2.txt", 3_443_693, 179.542, 188.501).run(),
)
