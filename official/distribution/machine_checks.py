"""Checks of a machine: driver, CUDA libraries, devices, TensorFlow's build, XLA, and other causes of slow or
failing runs.

`bert doctor` runs them all; a run on GPUs runs those that cost little while TensorFlow loads. This module
does not import TensorFlow: checks that need it run in a separate process (`official.io.gpus`), which XLA may
abort.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import glob
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import platform
import re
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent import futures
from typing import Any, NamedTuple

from absl import logging

from official.config import Config, ConfigError, kernels_of, replaced
from official.config.backends import BACKENDS
from official.io import files, gpus, native_library, writing
from official.io.errors import counted, first_line, installed_versions, printable

LIMIT_SECS = 20  # of a check
PAGE_SECS = 60  # of all
START_SECS = 5  # limit on how long the start of a run waits for them
_UNFINISHED = re.compile(r"not done yet|no (answer|end) within")  # of what took too long


STATUSES = ("ok", "warning", "broken")  # and the exit codes of `bert doctor`


class Check(NamedTuple):
    """The outcome of a check.

    Attributes:
      name: name of the check.
      status: ok, warning or broken.
      found: the actual state.
      wanted: the required state; empty if there is no requirement.
      advice: what to do; empty if the status is ok.
    """

    name: str
    status: str
    found: str
    wanted: str = ""
    advice: str = ""


Outcome = tuple[str, str, str, str]  # a check without its name


def _ok(found: str, wanted: str = "") -> Outcome:
    return "ok", found, wanted, ""


def _in_thread(function: Callable[[], Any]) -> futures.Future:
    """Runs a function in a daemon thread, which does not delay the program's exit."""
    found: futures.Future = futures.Future()

    def run() -> None:
        try:
            found.set_result(function())
        except Exception as error:  # noqa: BLE001  # raised again by result()
            found.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return found


class Machine:
    """Facts about this machine that several checks read, each determined once."""

    def __init__(self, driver: gpus.Driver | None, data_dir: str | None = None):
        self.driver, self.data_dir = driver, data_dir

    @functools.cached_property
    def trying(self) -> futures.Future:
        """The trial of TensorFlow, which takes longest: start it before the checks that wait for it."""
        return _in_thread(lambda: gpus.try_tensorflow(LIMIT_SECS - 1))

    @property
    def devices(self) -> tuple[gpus.Gpu, ...]:
        return self.driver.gpus if self.driver else ()

    @functools.cached_property
    def build(self) -> dict[str, Any]:
        return gpus.tensorflow_build()

    @functools.cached_property
    def libraries(self) -> dict[str, gpus.Library]:
        """The libraries that TensorFlow opens, the driver's and NCCL, and cuDNN in the folder of PyTorch."""
        if not self.devices:
            return {}
        theirs = [path for folder in _torch_folders() for path in glob.glob(f"{folder}/libcudnn.so.*")]
        names = [gpus.DRIVER_LIBRARY, *gpus.wanted_libraries(self.build), gpus.NCCL, *sorted(theirs)]
        return gpus.load_libraries(names, LIMIT_SECS / 2)

    @property
    def trial(self) -> gpus.Trial:
        return self.trying.result(LIMIT_SECS)


def _torch_folders() -> list[str]:
    spec = importlib.util.find_spec("torch")
    return [f"{glob.escape(path)}/lib" for path in (spec.submodule_search_locations or ())] if spec else []


def _installed(*names: str) -> str | None:
    """Returns the version of the first of several packages that is installed."""
    return next(iter(installed_versions(*names).values()), None)


def _tensorflow_version() -> str | None:
    return _installed("tensorflow", "tensorflow-cpu", "tf-nightly")


def _numbers(version: str) -> tuple[int, ...]:
    return gpus.version_key(version)[:2]


# -----------------------------------------------------------------------------------------------------------
# Driver, libraries, devices


def _machine(machine: Machine) -> Outcome:
    cpu = native_library.processor()
    gigabytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    cores, python = counted(cpu.cores, "core"), platform.python_version()
    return _ok(f"{cpu.name}, {cores}, {gigabytes:.0f} GB, {platform.platform()}, Python {python}")


def _driver(machine: Machine) -> Outcome:
    driver, cuda = machine.driver, str(machine.build.get("cuda_version", ""))
    if driver is None:
        return _ok("none, and no NVIDIA GPU")
    oldest = gpus.OLDEST_DRIVERS.get(cuda.partition(".")[0], "")
    wanted = f"{oldest} or newer, for CUDA {cuda}" if oldest else ""
    found = driver.version or "unknown version"
    if driver.fault:
        advice = "Reload the driver, or restart the machine; in a container, on the host."
        return "broken" if driver.gpus else "warning", f"{found}; {driver.fault}", wanted, advice
    if not driver.gpus:
        return _ok(f"{found}, without a GPU")
    if driver.version and oldest and gpus.version_key(driver.version) < gpus.version_key(oldest):
        return "broken", found, wanted, "Update the driver, or install a TensorFlow for an older CUDA."
    supported = machine.libraries[gpus.DRIVER_LIBRARY].version
    return _ok(found + (f" (CUDA {supported})" if supported else ""), wanted)


def _cuda_libraries(machine: Machine) -> Outcome:
    if not machine.devices:
        return _ok("none needed: no GPU")
    build, version = machine.build, _tensorflow_version()
    if build and not build.get("is_cuda_build"):
        advice = f"pip install 'tensorflow[and-cuda]=={version}'."
        return "broken", "TensorFlow is built without CUDA", "a build with CUDA", advice
    packages = gpus.wanted_libraries(build)
    wanted = f"{', '.join(packages)}; {gpus.NCCL} for several GPUs"
    if not packages:
        return _ok(f"not checked: TensorFlow is built for CUDA {build.get('cuda_version')}")
    known = {gpus.DRIVER_LIBRARY: "", **packages}
    missing = [name for name in known if machine.libraries[name].fault]
    if missing:
        name, more = missing[0], f"; nor do {', '.join(missing[1:])}" if missing[1:] else ""
        fault = str(machine.libraries[name].fault).replace(f"{name}: ", "").partition(": No such file")[0]
        advice = f"pip install 'tensorflow[and-cuda]=={version}' installs it ({known[name]})."
        if _UNFINISHED.search(fault):
            return "warning", f"{name}: {fault}", wanted, "Check again when the disk cache is warm."
        if name == gpus.DRIVER_LIBRARY:
            container = "in a container, NVIDIA_DRIVER_CAPABILITIES needs compute."
            advice = f"Install the NVIDIA driver, which it belongs to; {container}"
        return "broken", f"{name} does not load: {fault}{more}", wanted, advice
    found = ", ".join(f"{name} {_version_of(name, machine)}" for name in (*packages, gpus.NCCL))
    if machine.libraries[gpus.NCCL].fault and len(machine.devices) > 1:
        instead = "--all_reduce_alg=hierarchical_copy, unless the build has it."
        return "warning", found, wanted, f"pip install nvidia-nccl-cu12, or {instead}"
    return _ok(found, wanted)


def _version_of(name: str, machine: Machine) -> str:
    """Returns the version of a library, and the folder that it comes from."""
    library = machine.libraries[name]
    if library.fault:
        return "is missing"
    real = os.path.realpath(library.path)
    ending = os.path.basename(real).partition(".so.")[2]
    own = library.version or (ending if "." in ending else "")
    in_package = any(library.path.startswith(folder + os.sep) for folder in gpus.nvidia_folders())
    package = gpus.wanted_libraries(machine.build).get(name, "nvidia-nccl-cu12")
    if in_package:
        return f"{own or _installed(package) or ''} ({package})".strip()
    return f"{own} ({os.path.dirname(library.path)})".strip()


def _devices(machine: Machine) -> Outcome:
    if not machine.devices:
        return _ok("the CPU")
    there = _describe(machine.devices)
    if gpus.hidden():
        hides = f"{gpus.VISIBLE}={os.environ[gpus.VISIBLE]!r} hides them"
        return "warning", f"{there}; {hides}", "", f"Unset {gpus.VISIBLE} to train on them."
    seen = machine.trial.steps.get("gpus")
    if seen is None:
        return _stopped_before(machine.trial, f"{there}; TensorFlow did not list them")
    if not seen:
        # The driver's own refusal, such as CUDA_ERROR_SYSTEM_NOT_READY without NVIDIA's fabric manager.
        refusal = next((line for line in machine.trial.said.splitlines() if "CUDA_ERROR" in line), "")
        note = f": {_message(refusal)}" if refusal else ""
        advice = "See the lines on the driver and the CUDA libraries, else set TF_CPP_MIN_LOG_LEVEL=0."
        return "broken", f"{there}; TensorFlow sees none of them{note}", "all of them", advice
    note = "" if len(seen) == len(machine.devices) else f"; TensorFlow sees {len(seen)}"
    return _ok(there + note)


def _describe(found: Iterable[gpus.Gpu]) -> str:
    """Returns the names of GPUs as text, with the number of equal ones."""
    names: dict[str, int] = {}
    for gpu in found:
        memory = f", {gpu.memory_bytes / 2**30:.1f} GiB" if gpu.memory_bytes else ""
        capability = f", capability {'.'.join(map(str, gpu.capability))}" if gpu.capability else ""
        name = f"{gpu.name}{memory}{capability}"
        names[name] = names.get(name, 0) + 1
    return "; ".join(f"{number} x {name}" if number > 1 else name for name, number in names.items())


def _stopped_before(trial: gpus.Trial, what: str) -> Outcome:
    fault = f"{what}: {trial.fault}"
    if trial.timed_out:
        return "warning", fault, "", "Check again when the machine is less busy, or its disk cache is warm."
    return "broken", fault, "", f"{_cause(trial)} python -c 'import tensorflow' shows it."


# -----------------------------------------------------------------------------------------------------------
# TensorFlow's build, cuDNN, XLA


def _tensorflow(machine: Machine) -> Outcome:
    build, version = machine.build, _tensorflow_version()
    if not build and version is None:
        return "broken", "not installed", "TensorFlow", "Run ./scripts/setup_env.sh in the source folder."
    capabilities = [str(each) for each in build.get("cuda_compute_capabilities", ())]
    cuda = f"CUDA {build.get('cuda_version')}, cuDNN {build.get('cudnn_version')}: {' '.join(capabilities)}"
    found = f"{version or ''} ({cuda if build.get('is_cuda_build') else 'without CUDA'})".strip()
    trial = machine.trial
    if "build" not in trial.steps:
        status, fault, _, advice = _stopped_before(trial, "it cannot be imported")
        return status, f"{found}; {fault}", "", advice
    return _ok(found)


def _capability(machine: Machine) -> Outcome:
    known = [str(each) for each in machine.build.get("cuda_compute_capabilities", ())]
    outcomes = []
    for name, capability in _capabilities(machine):
        status, why, advice = judge_capability(capability, known)
        supported, cuda = machine.libraries[gpus.DRIVER_LIBRARY].version, str(machine.build["cuda_version"])
        if status == "warning" and supported and _numbers(supported) < _numbers(cuda):
            status, why = "broken", f"{why}, whose PTX of CUDA {cuda} is newer than the driver's {supported}"
            advice = "Update the driver."
        found = f"{name}: {'.'.join(map(str, capability))}{', ' * bool(why)}{why}"
        outcomes.append((status, found, f"of {' '.join(known)}", advice))
    return max(outcomes, key=lambda each: STATUSES.index(each[0]), default=_ok("none needed: no GPU"))


def _capabilities(machine: Machine) -> list[tuple[str, tuple[int, int]]]:
    """Returns (name, compute capability) of the GPUs that TensorFlow sees; without any, of the driver's."""
    seen = machine.trial.steps.get("gpus") or [[gpu.name, gpu.capability] for gpu in machine.devices]
    return [(name, (capability[0], capability[1])) for name, capability in seen if capability]


def judge_capability(capability: tuple[int, int], build: list[str]) -> tuple[str, str, str]:
    """Returns (status, why, advice) of a compute capability under those of a build, such as sm_80 (machine
    code alone) and compute_90 (PTX, too).

    Machine code runs on capabilities of its own major version that are not lower; PTX on all that are not
    lower, once the driver has compiled it.
    """
    pairs = (each.rpartition("_")[::2] for each in build)
    known = [(kind, divmod(int(number), 10)) for kind, number in pairs if number.isdigit()]
    if not known or any(code[0] == capability[0] and code[1] <= capability[1] for _, code in known):
        return "ok", "", ""
    if any(kind == "compute" and code <= capability for kind, code in known):
        advice = "The driver compiles all kernels at the first start, perhaps for minutes: a newer TensorFlow"
        return "warning", "newer than those of the build", f"{advice} has them."
    if capability < min(code for _, code in known):
        advice = "Install an older TensorFlow"
        why = "older than all those of the build"
    else:
        advice = "Install a newer TensorFlow"
        why = "for which the build has no kernels"
    return "broken", why, f"{advice}, or leave the GPU out ({gpus.VISIBLE}); --num_gpus=0 is the CPU."


def _cudnn(machine: Machine) -> Outcome:
    name = next((name for name in gpus.wanted_libraries(machine.build) if "cudnn" in name), None)
    if not machine.devices or name is None or machine.libraries[name].fault:
        return _ok("none needed: no GPU" if not machine.devices else "none is loaded")
    library, least = machine.libraries[name], _cudnn_of_build(machine.build)
    wanted = f"{least} or newer, below {_numbers(least)[0] + 1}"
    found = _version_of(name, machine)
    if not _fits(library.version, least):
        advice = f"pip install 'nvidia-cudnn-cu12>={least}', or use a separate environment."
        return "warning", "; ".join(filter(None, (found, ", ".join(_pins())))), wanted, advice
    rival = next(filter(_installed, ("nvidia-cudnn-cu13", "nvidia-cudnn-cu11")), None)
    if rival and _installed("nvidia-cudnn-cu12"):
        again = f"pip uninstall {rival}, and install nvidia-cudnn-cu12 again."
        both = f"{found}; {rival} {_installed(rival)} is installed, too"
        return "warning", both, wanted, f"Both packages write the same files: {again}"
    for path, theirs in machine.libraries.items():
        if os.path.isabs(path) and not theirs.fault and not _fits(theirs.version, least):
            both = f"{found}; PyTorch's own is {theirs.version} ({os.path.dirname(path)})"
            advice = "Import TensorFlow before torch, or use two environments."
            return "warning", both, wanted, advice
    return _ok(found, wanted)


def _fits(version: str | None, least: str) -> bool:
    """Tells whether a cuDNN fits a build: same major version, same or later minor version."""
    own, other = _numbers(version or least), _numbers(least)
    return own[0] == other[0] and own >= other


def _cudnn_of_build(build: dict[str, Any]) -> str:
    """Returns the oldest cuDNN that TensorFlow's package requires; else the version of the build."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        for text in importlib.metadata.requires("tensorflow") or ():
            if text.startswith("nvidia-cudnn") and (found := re.search(r"(?:==|>=)\s*([\d.]+)", text)):
                return found.group(1)
    return f"{build.get('cudnn_version')}.0"


def _pins() -> list[str]:
    """Returns 'PACKAGE pins REQUIREMENT' of installed packages, except TensorFlow, that require a cuDNN."""
    found = []
    for each in importlib.metadata.distributions():
        name = each.metadata["Name"] or ""
        pin = next((text for text in each.requires or () if text.startswith("nvidia-cudnn")), None)
        if pin and not name.startswith(("tensorflow", "nvidia")):
            found.append(f"{name} {each.version} pins {pin.partition(';')[0].strip()}")
    return found


# {words of XLA's messages: what to do}
_XLA_ADVICE = {
    r"(?i)libdevice": "pip install nvidia-cuda-nvcc-cu12 brings libdevice; with a CUDA toolkit of your own:"
    " XLA_FLAGS=--xla_gpu_cuda_data_dir=DIR, whose nvvm/libdevice holds it.",
    r"(?i)unsupported ptx|unsupported toolchain|ptx was compiled": "The driver is older than the ptxas:"
    " update the driver, or install nvidia-cuda-nvcc-cu12 of TensorFlow's CUDA.",
    r"(?i)sm_1\d\d|gpu-name|not a recognized processor|no kernel image": "The GPU is newer than XLA or ptxas:"
    " install a newer TensorFlow, or a newer nvidia-cuda-nvcc-cu12.",
    r"(?i)ptxas": "pip install nvidia-cuda-nvcc-cu12 brings ptxas, which must be on PATH.",
}
_PLAIN_COST = "Runs use plain kernels, which take more time and memory for a step."


def _xla(machine: Machine) -> Outcome:
    trial = machine.trial
    device, secs = trial.steps.get("device"), trial.steps.get("secs")
    if device is None:
        return _stopped_before(trial, "not tried")
    if trial.timed_out:
        return _stopped_before(trial, f"on {device}")
    if trial.fault:
        advice = f"{_cause(trial)} {_PLAIN_COST}"
        return "broken", f"on {device}: {trial.fault}", "compiled operations", advice
    return _ok(f"compiled for {device} in {secs:.1f} s" + (_tools() if device.startswith("GPU") else ""))


def _cause(trial: gpus.Trial) -> str:
    """Returns the advice that matches the output of a trial, with the line that matches."""
    lines = [" ".join(line.split()) for line in [*trial.said.splitlines(), trial.fault or ""]]
    messages = [line for line in lines if not _NOISE.match(line)]
    for pattern, advice in _XLA_ADVICE.items():
        if line := next((line for line in messages if re.search(pattern, line)), None):
            return f"{advice} It says: {_message(line)}."
    last = next(filter(_ERROR.match, reversed(lines)), "")
    return f"It says: {_message(last)}." if last else ""


# XLA also logs the paths that it searches; only lines about failures matter.
_NOISE = re.compile(r"(\S+ )?(\S+ )?[IW]\d{0,4} ")
_ERROR = re.compile(r"\S+ \S+ ?[EF] |[EF]\d{4} |\w+Error")


def _message(line: str) -> str:
    """Returns a log line without time and place, at most 160 letters."""
    return re.sub(r"^.*?\.(?:cc|h|py):\d+\] ", "", line)[:160].rstrip(". ")


def _output(*command: str, secs: float = 10) -> subprocess.CompletedProcess[str]:
    """Runs a program for at most `secs`. Raises OSError and subprocess.TimeoutExpired."""
    settings: dict[str, Any] = {"capture_output": True, "text": True, "errors": "replace"}
    return subprocess.run(command, timeout=secs, check=False, **settings)


def _tools() -> str:
    """Returns the folders of ptxas and libdevice as text for the page."""
    text, ptxas = "", shutil.which("ptxas")
    if ptxas:
        version = ""
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            version = (re.findall(r"release ([\d.]+)", _output(ptxas, "--version").stdout) or [""])[0]
        text += f"; ptxas {version} ({os.path.dirname(ptxas)})"
    flag = re.search(r"--xla_gpu_cuda_data_dir=(\S+)", os.environ.get("XLA_FLAGS", ""))
    return text + (f"; libdevice of {flag.group(1)}" if flag else "")


# -----------------------------------------------------------------------------------------------------------
# All-reduce, data, limits, compilers, environment, packages


_ALL_REDUCE = """import official, tensorflow as tf
from official.distribution import allreduce_check
print(f"{allreduce_check.measure(tf.distribute.MirroredStrategy()).gb_per_sec:.1f}")"""


def _all_reduce(machine: Machine) -> Outcome:
    if len(machine.devices) < 2:
        return _ok("none needed: fewer than two GPUs")
    wanted = f"a sum of {len(machine.devices)} GPUs"
    advice = "Use --all_reduce_alg=hierarchical_copy; NCCL_DEBUG=INFO and NCCL_P2P_DISABLE=1 find the cause."
    try:
        done = _output(sys.executable, "-c", _ALL_REDUCE, secs=LIMIT_SECS - 2)
    except subprocess.TimeoutExpired:
        return "broken", f"no end within {LIMIT_SECS - 2:.0f} s", wanted, advice
    lines = done.stdout.split()
    if done.returncode or not lines:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return "broken", said[:100], wanted, advice
    return _ok(f"{lines[-1]} GB/s among {len(machine.devices)} GPUs")


_LEAST_READ = 20e6  # bytes/s: eight GPUs read about 10 MB/s of records


def _data_folder(machine: Machine) -> Outcome:
    if machine.data_dir is None:
        return _ok("not asked for (--data_dir)")
    wanted = f"{_LEAST_READ / 1e6:.0f} MB/s or more"
    try:
        paths = files.find_files(machine.data_dir, "data_dir", "**")
        paths = [path for path, _ in sorted(zip(paths, files.sizes(paths)), key=lambda pair: -pair[1])]
        since, count = time.monotonic(), 0
        for path in paths:
            with files.open_binary(path) as file:
                if hasattr(os, "posix_fadvise") and not files.is_remote(path):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)  # the disk, not the cache
                while time.monotonic() < since + START_SECS and (data := file.read(1 << 23)):
                    count += len(data)
            if time.monotonic() >= since + START_SECS or count > 1 << 30:
                break
    except (ConfigError, OSError) as error:
        return "broken", first_line(error), wanted, "Give a folder of files that this user may read."
    speed = count / max(time.monotonic() - since, 1e-9)
    found = f"{speed / 1e6:,.0f} MB/s, {count / 1e6:,.0f} MB read of {counted(len(paths), 'file')}"
    if speed < _LEAST_READ and count > _LEAST_READ:
        return "warning", found, wanted, "Copy the data to a disk of this machine."
    return _ok(found, wanted)


_SHARED_MEMORY = "/dev/shm"
_LEAST_SHARED = 1 << 30


def _shared_memory(machine: Machine) -> Outcome:
    try:
        found = os.statvfs(_SHARED_MEMORY)
    except OSError as error:
        return _ok(f"none ({error.strerror})")
    free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
    space = f"{free / 2**30:.2f} of {size / 2**30:.2f} GiB free in {_SHARED_MEMORY}"
    if len(machine.devices) > 1 and free < _LEAST_SHARED:
        advice = "docker run --shm-size=1g; in Kubernetes an emptyDir of medium Memory."
        return "warning", space, "1 GiB, for NCCL", advice
    return _ok(space)


def _open_files(machine: Machine) -> Outcome:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    name = lambda limit: "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
    found = f"{name(soft)}, {name(hard)} at most"
    if 0 <= soft < 1024:
        return "warning", found, "1,024 or more", "ulimit -n 4096 before the command."
    return _ok(found)


def _compiler(machine: Machine) -> Outcome:
    wanted = "" if machine.devices else "a C++ compiler, for the native kernels of CPUs"
    try:
        path = native_library.find_compiler()
        said = _output(path, "--version").stdout.splitlines()
        return _ok(f"{path}: {next(iter(said), '')}", wanted)
    except (native_library.NotBuilt, OSError, subprocess.SubprocessError) as error:
        if machine.devices:
            return _ok(f"none, and GPUs need none ({first_line(error)})")
        advice = "Install g++ or clang: steps take longer without one (--kernels)."
        return "warning", first_line(error), wanted, advice


# Variables that change what a run does, or how fast; other variables may be secret and are not shown.
_VARIABLES = (
    "BERT_CACHE_DIR CUDA_DEVICE_ORDER CUDA_LAUNCH_BLOCKING CUDA_VISIBLE_DEVICES CXX LD_LIBRARY_PATH"
    " LD_PRELOAD MALLOC_ARENA_MAX NCCL_ALGO NCCL_DEBUG NCCL_IB_DISABLE NCCL_P2P_DISABLE NCCL_PROTO"
    " NCCL_SHM_DISABLE NCCL_SOCKET_IFNAME NVIDIA_DRIVER_CAPABILITIES NVIDIA_TF32_OVERRIDE"
    " NVIDIA_VISIBLE_DEVICES OMP_NUM_THREADS TF_CPP_MAX_VLOG_LEVEL TF_CPP_MIN_LOG_LEVEL"
    " TF_CUDNN_USE_AUTOTUNE TF_DETERMINISTIC_OPS TF_ENABLE_ONEDNN_OPTS TF_FORCE_GPU_ALLOW_GROWTH"
    " TF_FORCE_UNIFIED_MEMORY TF_GPU_ALLOCATOR TF_GPU_THREAD_COUNT TF_GPU_THREAD_MODE"
    " TF_NUM_INTEROP_THREADS TF_NUM_INTRAOP_THREADS TF_USE_LEGACY_KERAS TF_XLA_FLAGS XLA_FLAGS"
).split()
# {variable: (pattern of bad values, advice)}; all but the first matter only on GPUs
_SPOILT = {
    "TF_USE_LEGACY_KERAS": (r"(0|false|)$", "the models need Keras 2: unset it"),
    "CUDA_LAUNCH_BLOCKING": (r"1$", "makes every kernel wait: unset it"),
    "TF_CPP_MAX_VLOG_LEVEL": (r"[1-9]", "writes gigabytes of logs: unset it"),
    "NVIDIA_DRIVER_CAPABILITIES": (r"(?!.*(compute|all))", "lacks compute: add it"),
}


def _environment(machine: Machine) -> Outcome:
    values = {name: os.environ[name] for name in _VARIABLES if name in os.environ}
    found = ", ".join(f"{name}={value}" for name, value in values.items()) or "nothing of note"
    of_this = list(_SPOILT.items())[: None if machine.devices else 1]
    spoilt = [
        f"{name} {advice}"
        for name, (pattern, advice) in of_this
        if name in values and re.match(pattern, values[name])
    ]
    return ("warning", found, "", f"{'; '.join(spoilt)}.") if spoilt else _ok(found)


_OWN = "bert-tf2"


def _package_name(machine: Machine) -> Outcome:
    owners = dict.fromkeys(importlib.metadata.packages_distributions().get("official", ()))
    others = [f"{name} {importlib.metadata.version(name)}" for name in owners if name.lower() != _OWN]
    here = os.path.dirname(os.path.dirname(os.path.abspath(writing.__file__)))
    if not others:
        return _ok(f"only ours, in {here}")
    in_packages = os.path.basename(os.path.dirname(here)) in ("site-packages", "dist-packages")
    advice = f"pip uninstall {others[0].split()[0]}, or use a separate environment."
    others_in = f"of {', '.join(others)}, too; ours is in {here}"
    return "broken" if in_packages else "warning", others_in, "", advice


# -----------------------------------------------------------------------------------------------------------
# All checks


class _Row(NamedTuple):
    """A check: its name, its function, and when the start of a run on GPUs runs it: every time (`anew`), only
    after a change of something it depends on (`kept`), or `never`."""

    name: str
    function: Callable[[Machine], Outcome]
    at_start: str = "kept"


DRIVER, LIBRARIES, DEVICES = "driver", "CUDA libraries", "devices"
CAPABILITY, XLA = "capability", "XLA"
CHECKS = (
    _Row("machine", _machine, "anew"),
    _Row(DRIVER, _driver),
    _Row(LIBRARIES, _cuda_libraries),
    _Row(DEVICES, _devices),
    _Row("TensorFlow", _tensorflow),
    _Row(CAPABILITY, _capability),
    _Row("cuDNN", _cudnn),
    _Row(XLA, _xla),
    _Row("all-reduce", _all_reduce, "never"),
    _Row("data folder", _data_folder, "never"),
    _Row("shared memory", _shared_memory, "anew"),
    _Row("open files", _open_files, "anew"),
    _Row("compiler", _compiler, "never"),
    _Row("environment", _environment, "anew"),
    _Row("package official", _package_name),
)


def run_checks(data_dir: str | None = None) -> list[Check]:
    """Runs all checks one after the other, each for at most 20 s, all together for at most 60 s.

    Args:
      data_dir: folder, or glob, of data to measure the read speed of; None: not measured.
    """
    return _run_all(CHECKS, Machine(gpus.find_driver(LIMIT_SECS / 2), data_dir))


def _run_all(rows: Iterable[_Row], machine: Machine) -> list[Check]:
    ends = time.monotonic() + PAGE_SECS
    _ = machine.trying  # begins it
    return [_run(row, machine, ends) for row in rows]


def _run(row: _Row, machine: Machine, ends: float) -> Check:
    secs = max(min(LIMIT_SECS, ends - time.monotonic()), 0.1)
    try:
        outcome = _in_thread(lambda: row.function(machine)).result(secs)
    except futures.TimeoutError:
        outcome = "warning", f"no answer within {secs:.0f} s", "", "Check again; a device may hang."
    except Exception as error:  # noqa: BLE001  # an unforeseen fault of the machine
        failure = f"the check fails: {type(error).__name__}: {first_line(error)}"
        outcome = "warning", failure, "", "Report it: no run depends on it."
    return Check(row.name, *(_anonymous(printable(text)) for text in outcome))


def _anonymous(text: str) -> str:
    """Returns a text without the names of users: the home folder is ~, and USER stands for names."""
    home = os.path.expanduser("~")
    if len(home) > 1:
        text = re.sub(rf"{re.escape(home)}(?=[/:\s,;)'\"]|$)", "~", text)
    text = re.sub(r"/(home|Users)/[^/:\s,;)]+", r"/\1/USER", text)
    with contextlib.suppress(KeyError, OSError, ImportError):  # a user without a name
        name = getpass.getuser()
        if len(name) > 2 and name != "root":
            text = re.sub(rf"\b{re.escape(name)}\b", "USER", text)
    return text


# -----------------------------------------------------------------------------------------------------------
# The start of a run


def asks_for_gpus(config: Config) -> bool:
    """Tells whether a run uses the GPUs of a machine that has some."""
    on_cpus = config.num_gpus == 0 or config.num_virtual_devices
    return not on_cpus and BACKENDS[config.distribution_strategy].takes_gpus


class _Start:
    """The checks at the start of a run, in a thread.

    Attributes:
      earlier: results kept by an earlier start with the same driver, libraries and settings; None if there
        are none, or before they are read.
    """

    def __init__(self):
        self.earlier: list[Check] | None = None
        self._path = ""
        self._task = _in_thread(self._run)

    def _run(self) -> list[Check]:
        driver = gpus.find_driver(LIMIT_SECS / 4)
        if driver is None or not driver.gpus:
            return []
        self._path = _cache_path(driver)
        self.earlier = kept = _read(self._path)
        machine = Machine(driver)
        if kept is None or not _passed(kept):
            kept = _run_all([row for row in CHECKS if row.at_start == "kept"], machine)
            self._keep(kept)
        ends, names = time.monotonic() + PAGE_SECS, [row.name for row in CHECKS]
        kept += [_run(row, machine, ends) for row in CHECKS if row.at_start == "anew"]
        return sorted(kept, key=lambda check: names.index(check.name))

    def result(self) -> list[Check]:
        """Returns the checks, or a single unfinished one after the time limit.

        It waits up to 5 s, or 20 s if an earlier start did not pass them: its run may have crashed in XLA
        before they were done.
        """
        with contextlib.suppress(futures.TimeoutError):
            return self._task.result(START_SECS)
        with contextlib.suppress(futures.TimeoutError):
            return self._task.result(LIMIT_SECS - START_SECS if self.earlier else 0)
        found = "not done yet: they continue in the background, for the next start"
        unfinished = [Check("checks", "warning", found, "", "bert doctor waits for them.")]
        self._keep(unfinished)
        return unfinished

    def _keep(self, checks: list[Check]) -> None:
        if self._path:
            with contextlib.suppress(OSError):
                writing.replace_file(self._path, json.dumps([check._asdict() for check in checks]))


def _passed(checks: list[Check]) -> bool:
    """Tells whether checks can be reused: all finished, and nothing is broken."""
    return all(check.status != "broken" and not _UNFINISHED.search(check.found) for check in checks)


def _read(path: str) -> list[Check] | None:
    try:
        with open(path, encoding="utf-8") as file:
            return [Check(**each) for each in json.load(file)]
    except (OSError, ValueError, TypeError):
        return None


def _cache_path(driver: gpus.Driver) -> str:
    """Returns the path of the kept checks, named by a hash of everything that they depend on; empty without a
    private folder."""
    names = ("nvidia-", "tensorflow", "torch", "tf-", _OWN)
    packages = sorted(
        f"{each.metadata['Name']} {each.version}"
        for each in importlib.metadata.distributions()
        if (each.metadata["Name"] or "").startswith(names)
    )
    wanted = gpus.wanted_libraries(gpus.tensorflow_build())
    libraries = [os.path.realpath(gpus.find_library(name)) for name in wanted]
    settings = {name: os.environ.get(name) for name in (*_VARIABLES, "PATH")}
    sources = [pathlib.Path(path).read_text("utf-8") for path in (__file__, gpus.__file__)]
    known = [driver, packages, libraries, settings, platform.release(), sources]
    key = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]
    try:
        return os.path.join(writing.private("checks"), f"{key}.json")
    except OSError:
        return ""


_started = functools.lru_cache(_Start)  # once in a process


def begin(config: Config) -> _Start | None:
    """Starts the checks of a run in the background; returns None if the run uses no GPU. Call it before
    TensorFlow is imported, which takes as long as the checks."""
    return _started() if asks_for_gpus(config) and gpus.may_be_there() and not gpus.hidden() else None


def of_run(config: Config) -> list[Check] | None:
    """Returns the checks of a run; None if `begin` starts none."""
    start = begin(config)
    return start.result() if start else None


def with_working_kernels(config: Config, checks: list[Check] | None) -> Config:
    """Returns the configuration, with plain kernels if XLA does not work on the GPUs.

    Raises:
      ConfigError: if the run explicitly asks for XLA, or TensorFlow has no kernels for the GPUs.
    """
    of = {check.name: check for check in checks or ()}
    if CAPABILITY in of and of[CAPABILITY].status == "broken":
        wanted = of[CAPABILITY].wanted
        raise ConfigError(f"Compute capability of {of[CAPABILITY].found} ({wanted}). {of[CAPABILITY].advice}")
    if XLA not in of or of[XLA].status != "broken" or kernels_of(config) == "plain" and not config.enable_xla:
        return config
    several = BACKENDS[config.distribution_strategy].several_processes  # others may not fall back
    asked = "enable_xla" if config.enable_xla else f"kernels={config.kernels}"
    if config.enable_xla or config.kernels == "fused" or several:
        use = "--kernels=plain on all processes" if several else "--kernels=plain"
        raise ConfigError(f"{asked}: XLA does not work here, {of[XLA].found}. {of[XLA].advice} Use {use}.")
    logging.warning("Kernels: plain, as XLA does not work here: every step takes more time and memory.")
    return replaced(config, kernels="plain")


def check_unseen(config: Config) -> None:
    """Logs the GPUs that a run leaves unused because TensorFlow sees none of them or the run asks for none.
    Raises ConfigError, with the reason, if the run asks for GPUs that TensorFlow does not see."""
    driver = gpus.find_driver()
    if driver is None:
        return
    there = _describe(driver.gpus)
    if not driver.gpus:
        if driver.fault:
            logging.warning("Training on the CPU: %s", driver.fault)
    elif not asks_for_gpus(config):
        logging.info("Not used: %s (--num_gpus=0 or logical CPUs).", there)
    elif gpus.hidden() and not config.num_gpus:
        logging.info("Not used: %s (%s=%r).", there, gpus.VISIBLE, os.environ[gpus.VISIBLE])
    elif not gpus.hidden():
        machine, ends = Machine(driver), time.monotonic() + PAGE_SECS
        rows = [row for row in CHECKS if row.name in (DRIVER, LIBRARIES, DEVICES)]
        found = (_run(row, machine, ends) for row in rows)
        cause = next((check for check in found if check.status == "broken"), None)
        why = f"{cause.found.partition('; nor')[0]}. {cause.advice}" if cause else "See bert doctor."
        asked = "" if config.num_gpus is None else f"num_gpus={config.num_gpus}: "
        number = counted(len(driver.gpus), "GPU")
        raise ConfigError(
            f"{asked}TensorFlow sees none of this machine's {number}: {why} Or use --num_gpus=0 for the CPU."
        )
