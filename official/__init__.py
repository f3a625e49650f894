"""BERT training, fine-tuning and conversion on TensorFlow 2."""

import os
import re
import sys
import time

from official.io import quiet

STARTED = time.time()  # when this process began, as near as code of its own can tell

# TensorFlow reads these when it is imported, so they are set before anything below can import it.
# setdefault: an explicit setting in the environment wins.
_ONEDNN = "TF_ENABLE_ONEDNN_OPTS"
_ONEDNN_IS_ASKED_FOR = _ONEDNN in os.environ
os.environ.setdefault(
    "TF_CPP_MIN_LOG_LEVEL", "3"
)  # keep start-up noise (CUDA probes, plugin registration) off the screen
os.environ.setdefault("TF_USE_LEGACY_KERAS", "1")  # tf.keras is Keras 2, also where Keras 3 is installed
# Vendor matrix products on CPUs. Those of TensorFlow 2.6, which Python 3.8 has, end the process with a
# floating-point exception in small models.
os.environ.setdefault(_ONEDNN, "1" if sys.version_info >= (3, 9) else "0")
# GPUs are shared: memory is taken as it is needed. --gpu_memory of a run says otherwise.
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")


def _prepare_import() -> None:
    """Lets the first import of TensorFlow be quiet, and find what the nvidia packages hold, where there are
    any."""
    before = lambda: None
    if any(os.path.isdir(os.path.join(path, "nvidia")) for path in sys.path):
        from official.io import gpus  # late: other machines need nothing of it

        gpus.prepare()
        before = gpus.preload
    quiet.prepare_import("tensorflow", before)  # from 2.16 on it is noisy whatever the level


_prepare_import()


def choose_kernels(dtype: str, cpu_info: str = "/proc/cpuinfo") -> None:
    """Chooses the matrix products that are the faster ones for a dtype on this CPU. To be called before
    TensorFlow is imported.

    bf16 without instructions for it goes to TensorFlow's own products: oneDNN's are half to a quarter as fast
    there.
    """
    if dtype == "bf16" and not _ONEDNN_IS_ASKED_FOR and not _has_bf16(cpu_info):
        os.environ[_ONEDNN] = "0"


def tell_allocations() -> None:
    """Makes TensorFlow tell its profiler of all memory that it takes on CPUs. To be called before it is
    imported.

    Its usual pools tell of large tensors only, or of none. This one is as large as the machine's memory, at
    most.
    """
    os.environ.setdefault("TF_CPU_ALLOCATOR_USE_BFC", "1")
    megabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
    os.environ.setdefault("TF_CPU_BFC_MEM_LIMIT_IN_MB", str(megabytes))


def _has_bf16(cpu_info: str) -> bool:
    """Returns whether the CPU multiplies bfloat16 numbers; where that is not known, that it does."""
    try:
        with open(cpu_info, encoding="utf-8", errors="replace") as file:
            flags = re.search(r"^flags\s*:(.*)$", file.read(), re.MULTILINE)
    except OSError:
        return True
    return flags is None or not {"avx512_bf16", "amx_bf16"}.isdisjoint(flags.group(1).split())
