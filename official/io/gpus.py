"""NVIDIA GPUs of this machine, without TensorFlow: driver, CUDA libraries, XLA's paths.

This file is also a program: it tries libraries and compiled operations in a separate process, which they may
crash. So it imports no module of the project at its top.
"""

from __future__ import annotations

import glob
import os
import sys
from typing import Any, NamedTuple

DEVICES = "/dev/nvidia[0-9]*"
VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER_VERSION = "/proc/driver/nvidia/version"
# {CUDA: {library that TensorFlow opens before it has a GPU: folder of the nvidia packages}}
# Source: tsl/platform/default/dso_loader.cc of TensorFlow 2.15 and 2.21.
_LIBRARIES = {
    "12": {
        "libcudart.so.12": "cuda_runtime",
        "libcublas.so.12": "cublas",
        "libcublasLt.so.12": "cublas",
        "libcufft.so.11": "cufft",
        "libcusolver.so.11": "cusolver",
        "libcusparse.so.12": "cusparse",
    }
}
NCCL = "libnccl.so.2"
DRIVER_LIBRARY = "libcuda.so.1"
# {CUDA: oldest driver on Linux}. Source: NVIDIA's "CUDA Compatibility", minor version compatibility.
OLDEST_DRIVERS = {"11": "450.80.02", "12": "525.60.13", "13": "580.65.06"}


# -----------------------------------------------------------------------------------------------------------
# GPUs and driver


class Gpu(NamedTuple):
    """A GPU as the driver describes it.

    Attributes:
      name: its model.
      memory_bytes: None where the driver does not say, such as of memory shared with the CPU.
      capability: compute capability (major, minor); None where the driver is too old to say.
    """

    name: str
    memory_bytes: int | None = None
    capability: tuple[int, int] | None = None


class Driver(NamedTuple):
    """The driver and its GPUs.

    Attributes:
      version: None where it is not known.
      gpus: all GPUs of the machine, hidden ones included.
      fault: why they cannot be used, in one line.
    """

    version: str | None
    gpus: tuple[Gpu, ...]
    fault: str | None = None


def may_be_there() -> bool:
    """Tells whether the machine may have GPUs of NVIDIA's; takes microseconds where it has none."""
    import shutil

    return bool(glob.glob(DEVICES)) or shutil.which("nvidia-smi") is not None


def hidden() -> bool:
    """Tells whether the environment hides all GPUs from CUDA."""
    first = os.environ.get(VISIBLE, "0").split(",")[0].strip()
    return not first or first.startswith("-")


def find_driver(timeout_secs: float = 20) -> Driver | None:
    """Returns the driver and the GPUs of this machine; None without both."""
    if not may_be_there():
        return None
    devices, version = glob.glob(DEVICES), _loaded_version()
    output, fault = "", None
    # Drivers before 510 do not know compute capabilities, and fail.
    for fields in ("name,driver_version,memory.total,compute_cap", "name,driver_version,memory.total"):
        output, fault = _nvidia_smi(fields, timeout_secs)
        if not (fault and "compute_cap" in fault):
            break
    lines = [] if fault else output.splitlines()
    rows = [[cell.strip() for cell in line.split(",")] for line in lines if line.count(",") > 1]
    gpus = tuple(Gpu(row[0], _bytes(row[2]), _capability(row[3:])) for row in rows)
    if rows:
        version = rows[0][1]
    elif devices:  # without nvidia-smi, or if it fails, the driver's device files count
        gpus = (Gpu("a GPU"),) * len(devices)
    elif fault and "no devices" in fault.lower():
        fault = None
    return Driver(version, gpus, fault)


def _nvidia_smi(fields: str, timeout_secs: float) -> tuple[str, str | None]:
    """Returns (output, fault) of a query."""
    import subprocess

    command = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=timeout_secs, check=False
        )
    except subprocess.TimeoutExpired:
        return "", f"nvidia-smi does not answer within {timeout_secs:.0f} s"
    except OSError as error:
        return "", f"nvidia-smi: {error.strerror}"
    said = " ".join((done.stdout + done.stderr).split())
    return done.stdout, f"nvidia-smi: {said[:200]}" if done.returncode else None


def _loaded_version() -> str | None:
    """Returns the version of the kernel's driver; None where the kernel does not say."""
    import re

    try:
        with open(_DRIVER_VERSION, encoding="utf-8", errors="replace") as file:
            found = re.search(r"\s(\d+\.\d+[.\d]*)\s", file.read())
    except OSError:
        return None
    return found.group(1) if found else None


def _bytes(text: str) -> int | None:
    return int(text) << 20 if text.isdigit() else None  # MiB; [N/A] where it is the CPU's memory


def _capability(cells: list[str]) -> tuple[int, int] | None:
    major, _, minor = (cells[0] if cells else "").partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def version_key(version: str) -> tuple[int, ...]:
    """Returns a version as numbers that can be compared: 525.60.13 -> (525, 60, 13)."""
    return tuple(int(part) for part in version.split(".") if part.isdigit())


# -----------------------------------------------------------------------------------------------------------
# TensorFlow's build and the libraries that it opens


def tensorflow_build() -> dict[str, Any]:
    """Returns `tf.sysconfig.get_build_info()` without importing TensorFlow; {} where it is not installed,
    or does not say."""
    import importlib.machinery
    import runpy

    # Not with importlib.util.find_spec, which would call the finder of `official.io.quiet`.
    spec = importlib.machinery.PathFinder.find_spec("tensorflow")
    if spec is None or not spec.origin:
        return {}
    path = os.path.join(os.path.dirname(spec.origin), "python", "platform", "build_info.py")
    try:
        return dict(runpy.run_path(path)["build_info"])
    except (OSError, KeyError):
        return {}


def wanted_libraries(build: dict[str, Any]) -> dict[str, str]:
    """Returns {name of a library that a build of TensorFlow opens before it has a GPU: the pip package that
    brings it}; {} where the build is for no CUDA that is known here."""
    cuda = str(build.get("cuda_version", "")).partition(".")[0]
    folders = dict(_LIBRARIES.get(cuda, {}))
    if folders:
        folders[f"libcudnn.so.{str(build.get('cudnn_version', '')).partition('.')[0]}"] = "cudnn"
    return {name: f"nvidia-{folder.replace('_', '-')}-cu{cuda}" for name, folder in folders.items()}


def nvidia_folders() -> list[str]:
    """Returns the folders of the nvidia packages on Python's path, the first one first."""
    found = (os.path.join(path or os.curdir, "nvidia") for path in sys.path)
    return list(dict.fromkeys(os.path.abspath(path) for path in found if os.path.isdir(path)))


def find_library(name: str) -> str:
    """Returns the path of a library in $LD_LIBRARY_PATH or the nvidia packages; else its name, for the
    system's loader."""
    folders = [path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if path]
    for folder in nvidia_folders():
        folders += sorted(glob.glob(os.path.join(glob.escape(folder), "*", "lib")))
    paths = (os.path.join(folder, name) for folder in folders)
    return next(filter(os.path.isfile, paths), name)


def prepare() -> None:
    """Points XLA to libdevice and ptxas in the nvidia packages, if any, and makes it leave matrix products to
    cuBLAS; existing settings stay. Call it before TensorFlow is imported.

    TensorFlow 2.15 searches its own folder for both; 2.21 and other builds do not. XLA's own matrix products
    double the compile time of a BERT-base step without making it faster.
    """
    if may_be_there():
        _add_xla_flag("--xla_gpu_enable_triton_gemm", "false")
    for folder in nvidia_folders():
        toolkit = os.path.join(folder, "cuda_nvcc")
        if os.path.isdir(toolkit):
            _add_xla_flag("--xla_gpu_cuda_data_dir", toolkit)
            programs = os.path.join(toolkit, "bin")
            paths = os.environ.get("PATH", os.defpath).split(os.pathsep)
            if programs not in paths:  # last, so that a ptxas on the path stays first
                os.environ["PATH"] = os.pathsep.join([*paths, programs])
            return


def _add_xla_flag(flag: str, value: str) -> None:
    """Adds a flag to XLA_FLAGS, unless it is there, or the variable names a file of flags. Paths with spaces
    cannot be written for all versions."""
    flags = os.environ.get("XLA_FLAGS", "")
    if flag not in flags and flags.lstrip()[:1] in ("", "-") and " " not in value:
        os.environ["XLA_FLAGS"] = f"{flags} {flag}={value}".strip()


def preload() -> None:
    """Loads the CUDA libraries of the nvidia packages, on machines with GPUs. To be called before TensorFlow
    looks for its devices.

    TensorFlow searches the RUNPATH of one of its files, which misses some folders: that of 2.21.0 lacks
    cuSOLVER's. A loaded library is found by its name.
    """
    if hidden() or not may_be_there() or not nvidia_folders():
        return
    import contextlib
    import ctypes

    for name in wanted_libraries(tensorflow_build()):
        path = find_library(name)
        if path != name:
            with contextlib.suppress(OSError):  # TensorFlow will fail, too; `load_libraries` reports why
                ctypes.CDLL(path)


# -----------------------------------------------------------------------------------------------------------
# Trials in separate processes


class Trial(NamedTuple):
    """Result of a trial in a separate process.

    Attributes:
      steps: {name of a completed step: its findings}.
      fault: the reason of its failure, in one line; None if it succeeded.
      timed_out: whether it took too long.
      said: what it wrote to stderr.
    """

    steps: dict[str, Any]
    fault: str | None
    timed_out: bool = False
    said: str = ""


TRY = [sys.executable, os.path.abspath(__file__)]


def run_trial(arguments: list[str], timeout_secs: float) -> Trial:
    """Runs this file as a program; findings before a crash are kept, since they are read line by line."""
    import json
    import signal
    import subprocess

    # Its log names the cause.
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}
    alive, held = os.pipe()
    process = subprocess.Popen(
        [*TRY, *arguments],
        env=environment,
        stdin=alive,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C of a terminal is for this process
    )
    os.close(alive)
    timed_out = False
    try:
        output, said = process.communicate(timeout=timeout_secs)
    except subprocess.TimeoutExpired:
        timed_out = True
        os.killpg(process.pid, signal.SIGKILL)
        output, said = process.communicate()
    os.close(held)
    steps: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{") and line.endswith("}"):
            steps.update(json.loads(line))
    if timed_out:
        fault = f"no end within {timeout_secs:.0f} s"
    elif process.returncode < 0:
        fault = f"ended by {signal.Signals(-process.returncode).name}"
    else:
        ended = f"ended with code {process.returncode}" if process.returncode else None
        fault = steps.pop("fault", ended)
    return Trial(steps, fault, timed_out, said)


class Library(NamedTuple):
    """A library that was loaded, or not.

    Attributes:
      path: of its file, or its name.
      version: None where it is not known.
      fault: why it does not load.
    """

    path: str
    version: str | None = None
    fault: str | None = None


def load_libraries(names: list[str], timeout_secs: float = 20) -> dict[str, Library]:
    """Returns {name: library}, loaded in a separate process. Names may be paths."""
    trial = run_trial(["libraries", *names], timeout_secs)
    left = trial.fault or "the process that loads it gave no answer"
    return {name: Library(**trial.steps.get(name, {"path": name, "fault": left})) for name in names}


def try_tensorflow(timeout_secs: float) -> Trial:
    """Makes TensorFlow list its GPUs and compile operations with XLA in a separate process.

    Steps: `build` (as get_build_info), `gpus` ([name, capability] of each), `device` (that it
    compiles for), `secs` (that compiling takes).
    """
    return run_trial(["tensorflow"], timeout_secs)


def _tell(**step: Any) -> None:
    import json

    print(json.dumps(step), flush=True)


def _load(names: list[str]) -> None:
    import ctypes

    for name in names:
        path = name if os.path.isabs(name) else find_library(name)
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            _tell(**{name: {"path": path, "fault": str(error)[:300]}})
            continue
        _tell(**{name: {"path": _path_in_memory(name) or path, "version": _own_version(name, library)}})


def _path_in_memory(name: str) -> str | None:
    """Returns the path that a library was loaded from."""
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        paths = [line.split(maxsplit=5)[-1].strip() for line in file if ".so" in line]
    stem = os.path.basename(name)
    return next((path for path in paths if os.path.basename(path).startswith(stem)), None)


def _own_version(name: str, library: Any) -> str | None:
    """Returns the version that a library reports; None if unknown."""
    import ctypes

    def asked(function: str) -> int:
        number = ctypes.c_int()
        return 0 if getattr(library, function)(ctypes.byref(number)) else number.value

    stem = os.path.basename(name).partition(".")[0]
    if stem == "libcudnn":
        library.cudnnGetVersion.restype = ctypes.c_size_t
        number = library.cudnnGetVersion()
        thousands = 10000 if number >= 90000 else 1000  # 8904 is 8.9.4, 90300 is 9.3.0
        return f"{number // thousands}.{number % thousands // 100}.{number % 100}"
    functions = {"libcuda": "cuDriverGetVersion", "libcudart": "cudaRuntimeGetVersion"}
    number = asked(functions[stem]) if stem in functions else 0
    return f"{number // 1000}.{number % 1000 // 10}" if number else None  # 12050 is 12.5


def _try_tensorflow() -> None:
    import time

    preload()
    import tensorflow as tf

    _tell(build=dict(tf.sysconfig.get_build_info()))
    gpus = tf.config.list_physical_devices("GPU")
    details = map(tf.config.experimental.get_device_details, gpus)
    _tell(gpus=[[each.get("device_name", "a GPU"), each.get("compute_capability")] for each in details])
    if gpus:  # the others are not woken
        tf.config.set_visible_devices(gpus[:1], "GPU")
    device = "GPU:0" if gpus else "CPU:0"
    _tell(device=device)

    def compute(x):  # what libdevice has, and a product
        y = tf.tanh(x) * tf.math.erf(x) + tf.exp(-x * x) + tf.math.rsqrt(1 + x * x)
        return tf.linalg.matmul(y, y, transpose_b=True), tf.reduce_sum(y, axis=-1)

    with tf.device(device):
        x = tf.reshape(tf.linspace(-3.0, 3.0, 64 * 128), [64, 128])
        since = time.monotonic()
        compiled = tf.function(compute, jit_compile=True, autograph=False)(x)
        for ours, plain in zip(compiled, compute(x)):
            difference = float(tf.reduce_max(tf.abs(ours - plain)) / tf.reduce_max(tf.abs(plain)))
            if not difference < 0.01:  # products may be rounded to TensorFloat-32
                _tell(fault=f"compiled operations are wrong by {difference:.2g} of the largest number")
        _tell(secs=time.monotonic() - since)


def _end_with_parent() -> None:
    """Ends this process when its parent, which holds the pipe, has ended."""
    import threading

    def wait() -> None:
        os.read(0, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


if __name__ == "__main__":
    _end_with_parent()
    if sys.argv[1] == "libraries":
        _load(sys.argv[2:])
    else:
        try:
            _try_tensorflow()
        except Exception as error:  # noqa: BLE001  # any error is the finding
            _tell(fault=(str(error).strip() or type(error).__name__).splitlines()[0][:300])
            raise
