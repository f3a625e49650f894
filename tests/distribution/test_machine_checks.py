"""Checks of a machine, on stand-ins for NVIDIA's: nvidia-smi as it answers, libraries, packages, and what
TensorFlow and XLA say where they fail."""

import importlib.metadata
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import pytest

from official.config import ConfigError
from official.distribution import machine_checks
from official.io import gpus, native_library
from tests import programs
from tests.fixtures import CACHE, ROOT, TINY

# TensorFlow 2.21.0's build_info.py and METADATA.
BUILD = {
    "cuda_compute_capabilities": ["sm_60", "sm_70", "sm_80", "sm_89", "compute_90"],
    "cuda_version": "12.5.1",
    "cudnn_version": "9",
    "is_cuda_build": True,
}
REQUIRES = [
    "nvidia-cublas-cu12<13.0,>=12.5.3.2; extra == 'and-cuda'",
    "nvidia-cudnn-cu12<10.0,>=9.3.0.75; extra == 'and-cuda'",
]
H100 = "NVIDIA H100 80GB HBM3, 580.95.05, 81559, 9.0\n"
SMI = """#!/bin/sh
case "$*" in
  "--query-gpu=name,driver_version,memory.total,compute_cap --format=csv,noheader,nounits") {full} ;;
  "--query-gpu=name,driver_version,memory.total --format=csv,noheader,nounits") {old} ;;
  *) echo "ERROR: $* was not expected."; exit 2 ;;
esac
"""
OLD_SMI = r"printf 'Field \"compute_cap\" is not a valid field to query.\n\n'; exit 2"
NO_DRIVER = (
    "printf 'NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver. Make sure that"
    " the latest NVIDIA driver is installed and running.\n\n'; exit 9"
)
LIBRARY = """extern "C" {
int cuDriverGetVersion(int *v) { *v = CUDA; return 0; }
int cudaRuntimeGetVersion(int *v) { *v = CUDA; return 0; }
unsigned long cudnnGetVersion() { return CUDNN; }
}"""
# Stands for the process that tries TensorFlow; libraries are loaded by the real one.
TRIAL = """import json, os, runpy, sys, time
if sys.argv[1] == "libraries":
    runpy.run_path({program!r}, run_name="__main__")
else:
    for step in json.loads({steps!r}):
        print(json.dumps(step), flush=True)
    sys.stderr.write({said!r})
    sys.stderr.flush()
    {end}
"""
IMPORTED = {"build": {}}
SEEN = {"gpus": [["NVIDIA H100 80GB HBM3", [9, 0]]]}
TRIED = [IMPORTED, SEEN, {"device": "GPU:0"}]
COMPILED = [*TRIED, {"secs": 1.25}]
LOG = "2026-01-01 00:00:00.000000: {} external/local_xla/xla/service/gpu/gpu_backend_lib.cc:7] {}\n"


class FakeMachine:
    """Folders that stand for a machine with a GPU, where all is well."""

    def __init__(self, folder: pathlib.Path, monkeypatch):
        self.folder, self._monkeypatch = folder, monkeypatch
        self.site, self.system = folder / "site", folder / "system"
        for path in (folder / "dev", folder / "bin", self.site, self.system, folder / "home"):
            path.mkdir()
        self.smi(f"printf '{H100}'")
        (folder / "dev" / "nvidia0").touch()
        monkeypatch.setattr(gpus, "DEVICES", f"{folder}/dev/nvidia[0-9]*")
        monkeypatch.setattr(gpus, "_DRIVER_VERSION", f"{folder}/proc")
        monkeypatch.setattr(gpus, "tensorflow_build", lambda: BUILD)
        monkeypatch.setattr(importlib.metadata, "requires", lambda name: REQUIRES)
        monkeypatch.setenv("PATH", f"{folder}/bin", prepend=os.pathsep)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(self.system))
        monkeypatch.setenv("PYTHONPATH", f"{self.site}{os.pathsep}{ROOT}")
        monkeypatch.setenv("BERT_CACHE_DIR", f"{folder}/cache")
        for name in ("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "XLA_FLAGS"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.syspath_prepend(str(self.site))
        self.library(self.system / "libcuda.so.1", cuda=13000)
        for name, package in gpus.wanted_libraries(BUILD).items():
            part = package.removeprefix("nvidia-").removesuffix("-cu12").replace("-", "_")
            self.library(self.site / "nvidia" / part / "lib" / name)
        self.library(self.site / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
        self.trial(COMPILED)

    def smi(self, full: str, old: str = "exit 3") -> None:
        programs.stand_in(self.folder / "bin" / "nvidia-smi", SMI.format(full=full, old=old))

    def library(self, path: pathlib.Path, cuda: int = 12090, cudnn: int = 90300) -> pathlib.Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        built = pathlib.Path(CACHE, f"lib{cuda}-{cudnn}.so")
        if not built.exists():
            source = built.with_suffix(".cc")
            source.write_text(LIBRARY)
            values = [f"-DCUDA={cuda}", f"-DCUDNN={cudnn}"]
            command = [native_library.find_compiler(), "-shared", "-fPIC", *values, source, "-o", built]
            subprocess.run(command, check=True)
        shutil.copy(built, path)
        return path

    def cudnn(self) -> pathlib.Path:
        return self.site / "nvidia" / "cudnn" / "lib" / "libcudnn.so.9"

    def package(self, name: str, version: str, top: str = "", requires: str = "") -> None:
        folder = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir()
        lines = [f"Requires-Dist: {requires}"] * bool(requires)
        text = "\n".join(["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *lines, ""])
        (folder / "METADATA").write_text(text)
        (folder / "top_level.txt").write_text(top)

    def trial(self, steps: list[dict], said: str = "", end: str = "") -> None:
        program = self.folder / "trial.py"
        text = TRIAL.format(program=gpus.__file__, steps=json.dumps(steps), said=said, end=end or "pass")
        program.write_text(text)
        self._monkeypatch.setattr(gpus, "TRY", [sys.executable, "-S", str(program)])

    def set(self, **variables: str) -> None:
        for name, value in variables.items():
            self._monkeypatch.setenv(name, value)


@pytest.fixture
def fake(tmp_path, monkeypatch):
    try:
        native_library.find_compiler()
    except native_library.NotBuilt as error:
        pytest.skip(str(error))
    folder = tmp_path / "machine"
    folder.mkdir()
    return FakeMachine(folder, monkeypatch)


def test_every_failure_of_a_gpu_leads_to_its_line(tmp_path, monkeypatch):
    """Each row: what is wrong leaves this check with this status, and its line says this: found, wanted and
    advice."""
    missing = "libdevice not found at ./libdevice.10.bc [Op:__inference_compute_7]"
    ptxas = LOG.format("F", "INTERNAL: Couldn't invoke ptxas --version")
    ptx = LOG.format(
        "E", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION: PTX was compiled with an unsupported toolchain"
    )
    newer = "ptxas fatal   : Value 'sm_120a' is not defined for option 'gpu-name'\n"
    refusal = "failed call to cuInit: CUDA_ERROR_SYSTEM_NOT_READY"
    noise = LOG.format("I", "Looking for libdevice at /usr") + LOG.format("W", "ptxas may be slow")
    failed = [*TRIED, {"fault": "InternalError"}]

    def given(**variables):
        return lambda fake: fake.set(**variables)

    def tried(*steps_said_and_end, **named):
        return lambda fake: fake.trial(*steps_said_and_end, **named)

    def damaged_library(fake):
        fake.cudnn().write_bytes(b"no library")

    def no_driver_library(fake):
        (fake.system / "libcuda.so.1").unlink()

    def torch_folder(fake):
        fake.library(fake.site / "torch" / "lib" / "libcudnn.so.9", cudnn=90100)
        (fake.site / "torch" / "__init__.py").touch()

    def older_cudnn(fake):
        fake.library(fake.cudnn(), cudnn=90100)
        fake.package("torch", "2.5.1", requires="nvidia-cudnn-cu12==9.1.0.70; platform_system == 'Linux'")

    def old_driver(fake):
        fake.smi(OLD_SMI, "printf 'Tesla V100-SXM2-16GB, 470.57.02, 16160\n'")
        fake.library(fake.system / "libcuda.so.1", cuda=11040)

    def two_gpus(fake):
        fake.smi(f"printf '{H100 * 2}'")

    def two_gpus_without_nccl(fake):
        two_gpus(fake)
        (fake.site / "nvidia" / "nccl" / "lib" / "libnccl.so.2").unlink()

    def new_gpu(capability, cuda=13000):
        steps = [IMPORTED, {"gpus": [["NVIDIA B200", capability]]}, {"device": "GPU:0"}, {"secs": 1.0}]
        return lambda fake: (fake.trial(steps), fake.library(fake.system / "libcuda.so.1", cuda=cuda))

    def not_ready(fake):
        said = LOG.format("E", f"{refusal}: system not yet initialized")
        fake.trial([IMPORTED, {"gpus": []}, {"device": "CPU:0"}, {"secs": 1.0}], said)

    def no_import(fake):
        fake.trial([], "ImportError: libfoo.so\n", "sys.exit(1)")

    def two_cudnns(fake):
        fake.package("nvidia-cudnn-cu13", "9.13.0")
        fake.package("nvidia-cudnn-cu12", "9.10.0")

    def garden(fake):
        fake.package("tf-models-official", "2.15.0", top="official\norbit\n")

    cuda, xla = "CUDA libraries", "XLA"
    aborted = "GPU:0: ended by SIGABRT.*nvcc-cu12 brings libdevice.*: libdevice not found.*plain"
    uninstall = "of tf-models-official 2.15.0.*pip uninstall tf-models-official"
    rows = [
        (cuda, "ok", lambda fake: None, r"libcudnn.so.9 9.3.0 \(nvidia-cudnn-cu12\)"),
        (cuda, "broken", lambda fake: fake.cudnn().unlink(), "libcudnn.so.9 does not load: .*pip install"),
        (cuda, "broken", damaged_library, "libcudnn.so.9 does not load: .*too short"),
        (cuda, "broken", no_driver_library, "libcuda.so.1 does not load.*NVIDIA_DRIVER_CAPABILITIES"),
        (cuda, "warning", two_gpus_without_nccl, "libnccl.so.2 is missing.*hierarchical"),
        ("driver", "broken", old_driver, "470.57.02.*525.60.13 or newer.*Update"),
        ("driver", "broken", lambda fake: fake.smi(NO_DRIVER), "communicate.*Reload the driver"),
        ("devices", "broken", not_ready, f"sees none of them: {refusal}"),
        ("devices", "warning", given(CUDA_VISIBLE_DEVICES=""), "CUDA_VISIBLE_DEVICES='' hides"),
        ("TensorFlow", "broken", no_import, "cannot be imported: ended with code 1.*ImportError: libfoo.so"),
        ("capability", "warning", new_gpu([10, 0]), "B200: 10.0, newer than .*minutes"),
        ("capability", "broken", new_gpu([10, 0], 12020), "12.5.1 .*driver's 12.2"),
        ("capability", "broken", new_gpu([5, 2]), "older than all .*sm_60.*older Tensor"),
        (xla, "broken", tried(TRIED, noise + missing, "os.abort()"), aborted),
        (xla, "broken", tried(TRIED, ptxas, "os.abort()"), "brings ptxas.*invoke ptxas"),
        (xla, "broken", tried(failed, ptx), "InternalError.*driver is older than the ptxas"),
        (xla, "broken", tried(TRIED, newer, "os.abort()"), "newer than XLA or ptxas"),
        (xla, "warning", tried(TRIED, end="time.sleep(60)"), "no end within"),
        ("cuDNN", "warning", older_cudnn, "9.1.0 .*torch 2.5.1 pins nvidia-cudnn-cu12==9.1.0.70.*9.3.0.75"),
        ("cuDNN", "warning", torch_folder, "PyTorch's own is 9.1.0.*before torch"),
        ("cuDNN", "warning", two_cudnns, "nvidia-cudnn-cu13 9.13.0 is installed, too.*uninstall"),
        ("shared memory", "warning", two_gpus, "0.06 of 0.06 GiB.*shm-size"),
        ("environment", "warning", given(CUDA_LAUNCH_BLOCKING="1"), "makes every kernel wait"),
        ("package official", "warning|broken", garden, uninstall),
    ]
    small = types.SimpleNamespace(f_bavail=16384, f_frsize=4096, f_blocks=16384)  # Docker's own
    failures = []
    for number, (line, status, spoil, told) in enumerate(rows):
        with monkeypatch.context() as patch:
            patch.setattr(machine_checks, "LIMIT_SECS", 3 if told == "no end within" else 20)
            patch.setattr(os, "statvfs", lambda path: small)
            folder = tmp_path / str(number)
            folder.mkdir()
            machine = FakeMachine(folder, patch)
            spoil(machine)
            own = [row for row in machine_checks.CHECKS if row.name == line or status == "ok"]
            found = machine_checks._run_all(own, machine_checks.Machine(gpus.find_driver()))
            checks = {check.name: check for check in found}
        check = checks[line]
        text = f"{check.found} | {check.wanted} | {check.advice}"
        if not re.fullmatch(status, check.status) or not re.search(told, text):
            failures.append(f"{line}, {told}: {check.status} {text}")
        if status == "ok":  # nothing is wrong
            failures += [f"{each}" for each in checks.values() if each.status != "ok"]
    assert not failures, "\n".join(failures)


def test_capabilities_under_those_of_the_builds():
    build_215 = ["sm_50", "sm_60", "sm_70", "sm_75", "compute_80"]
    build_221 = BUILD["cuda_compute_capabilities"]
    expected = {
        (7, 0): ("ok", "ok"),
        (7, 5): ("ok", "ok"),  # sm_70 runs on it
        (8, 0): ("ok", "ok"),
        (8, 6): ("ok", "ok"),
        (9, 0): ("warning", "ok"),
        (12, 0): ("warning", "warning"),
        (5, 0): ("ok", "broken"),
        (3, 7): ("broken", "broken"),
    }
    for capability, statuses in expected.items():
        found = [machine_checks.judge_capability(capability, build)[0] for build in (build_215, build_221)]
        assert tuple(found) == statuses, capability
    assert machine_checks.judge_capability((9, 0), ["sm_80"])[0] == "broken"  # without PTX


@pytest.mark.slow
def test_a_cpu_is_no_fault():
    """The page of this machine, for real, but for what the machine of a developer may lack."""
    no_gpu = dict(CUDA_VISIBLE_DEVICES="", PATH="/usr/bin:/bin")
    done = programs.run("-m", "official.cli", "doctor", "--json", **no_gpu)
    checks = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert list(checks) == [row.name for row in machine_checks.CHECKS]
    if not gpus.may_be_there():
        wrong = {name: each for name, each in checks.items() if each["status"] != "ok"}
        own = {"compiler", "package official", "open files"}  # of the developer's machine, which may be slow
        assert not [name for name in wrong if name not in own and "within" not in wrong[name]["found"]], wrong
        assert checks["driver"]["found"].startswith("none")
        assert "compiled for CPU:0" in checks["XLA"]["found"] or "XLA" in wrong
    worst = max(machine_checks.STATUSES.index(check["status"]) for check in checks.values())
    assert done.returncode == worst and done.stderr == ""


def test_the_page_holds_no_secrets_and_no_names(fake, monkeypatch, capsys):
    from official.cli import doctor

    home, line_of = fake.folder / "home", ("ok ", "warning ", "broken ")
    monkeypatch.setattr(sys, "argv", ["bert doctor", f"--data_dir={home}/none"])
    fake.set(HOME=str(home), LOGNAME="gertrude", AWS_SECRET_ACCESS_KEY="hush", LD_PRELOAD="/home/alice/x.so")
    fake.set(LD_LIBRARY_PATH=f"{fake.system}:{home}/lib:/data/gertrude/lib")
    assert doctor.run_doctor() == 2  # the folder is not there
    page = capsys.readouterr().out
    assert "~/none" in page and "LD_LIBRARY_PATH=" in page and "/data/USER/lib" in page
    assert not [word for word in (str(home), "gertrude", "alice", "hush", "AWS") if word in page]
    assert sum(line.startswith(line_of) for line in page.splitlines()) == len(machine_checks.CHECKS)


def test_the_speed_of_a_folder(tmp_path, monkeypatch):
    (tmp_path / "part-0").write_bytes(bytes(30_000_000))
    machine = machine_checks.Machine(None, str(tmp_path))
    status, found, *_ = machine_checks._data_folder(machine)
    assert re.fullmatch(r"[\d,]+ MB/s, 30 MB read of 1 file", found) and status == "ok"
    monkeypatch.setattr(machine_checks, "_LEAST_READ", 1e7)
    clock = iter(range(0, 1000, 2))  # a disk that takes two seconds
    monkeypatch.setattr(machine_checks.time, "monotonic", lambda: next(clock))
    assert machine_checks._data_folder(machine)[0] == "warning"


def test_no_run_trains_on_the_cpu_unnoticed(fake, make_config, monkeypatch, caplog):
    fake.trial([IMPORTED, {"gpus": []}])
    fake.cudnn().unlink()
    why = "none of this machine's 1 GPU: libcudnn.so.9 does not load: .*pip install.*--num_gpus=0 for the CPU"
    for asked in ({}, {"num_gpus": 1}, {"num_gpus": 1, "distribution_strategy": "one_device"}):
        with pytest.raises(ConfigError, match=why) as error:
            machine_checks.check_unseen(make_config(**asked))
        assert len(str(error.value)) < 299
    caplog.set_level("INFO", "absl")
    for asked in ({"num_gpus": 0}, {"num_virtual_devices": 2, "distribution_strategy": "mirrored"}):
        caplog.clear()
        machine_checks.check_unseen(make_config(**asked))
        assert [record.getMessage() for record in caplog.records] == [
            "Not used: NVIDIA H100 80GB HBM3, 79.6 GiB, capability 9.0 (--num_gpus=0 or logical CPUs)."
        ]
    fake.set(CUDA_VISIBLE_DEVICES="-1")
    caplog.clear()
    machine_checks.check_unseen(make_config())
    assert "CUDA_VISIBLE_DEVICES='-1'" in caplog.text
    fake.smi("printf 'No devices were found\n'; exit 6")
    (fake.folder / "dev" / "nvidia0").unlink()
    caplog.clear()
    machine_checks.check_unseen(make_config())
    assert not caplog.records


def test_a_start_keeps_what_it_found_until_something_changes(fake, make_config):
    def start():
        machine_checks._started.cache_clear()
        checks = machine_checks.of_run(make_config())
        return {check.name: check.status for check in checks}

    first = start()
    assert first["XLA"] == "ok" and not {"data folder", "all-reduce"} & set(first)
    fake.trial(TRIED, end="os.abort()")
    assert start() == first  # it is not tried again
    fake.smi(f"printf '{H100.replace('580.95', '590.11')}'")
    assert start()["XLA"] == "broken"
    fake.trial(COMPILED)
    assert start()["XLA"] == "ok"  # what is broken is tried again
    assert machine_checks.of_run(make_config(num_gpus=0)) is None
    machine_checks._started.cache_clear()


def test_a_start_waits_longer_only_after_one_that_did_not_end(fake, make_config, monkeypatch):
    monkeypatch.setattr(machine_checks, "START_SECS", 0.5)
    fake.trial(COMPILED, end="time.sleep(1)")
    for expected in ("checks", "machine"):
        machine_checks._started.cache_clear()
        start = machine_checks._started()
        assert start.result()[0].name == expected
        start._task.result(20)
        if expected == "checks":  # as if the run had ended before they were done
            start._keep([machine_checks.Check("checks", "warning", "not done yet")])
    machine_checks._started.cache_clear()


RUNS = """
import sys
from official.distribution import machine_checks
from official.io import gpus
gpus.DEVICES, gpus.TRY = {devices!r}, [sys.executable, {trial!r}]
gpus.tensorflow_build = lambda: {build!r}
machine_checks.check_unseen = lambda config: None  # TensorFlow has no GPU here: the run goes on on the CPU
from official.cli import train
flags = {flags!r}
for name, more in {{"default": [], "plain": ["--kernels=plain", "--num_gpus=0"]}}.items():
    assert train.main([*flags, *more, "--model_dir={folder}/" + name]) == 0
for more in ("--kernels=fused", "--enable_xla"):
    assert train.main([*flags, more, "--model_dir={folder}/none"]) == 2
"""


@pytest.mark.slow
def test_a_run_with_a_broken_xla_goes_on_with_plain_operations(fake, tmp_path):
    fake.trial(TRIED, "libdevice not found at ./libdevice.10.bc\n", "os.abort()")
    (tmp_path / "bert.json").write_text(json.dumps(TINY))
    flags = (
        f"--bert_config_file={tmp_path}/bert.json --use_synthetic_data --num_train_epochs=1"
        " --num_steps_per_epoch=3 --max_seq_length=16 --max_predictions_per_seq=3 --train_batch_size=2"
        " --warmup_steps=1"
    ).split()
    facts = dict(devices=gpus.DEVICES, trial=gpus.TRY[-1], build=BUILD, flags=flags, folder=str(tmp_path))
    done = programs.run("-c", RUNS.format(**facts))
    assert done.returncode == 0, done.stderr

    def losses(name):
        lines = map(json.loads, (tmp_path / name / "metrics.jsonl").read_text().splitlines())
        return [(line["step"], line["loss"]) for line in lines]

    assert losses("default") == losses("plain") and len(losses("default"))
    own, other = (json.loads((tmp_path / name / "result.json").read_text()) for name in ("default", "plain"))
    assert own["config"]["kernels"] == "plain" and other["checks"] is None
    broken = {check["name"]: check["status"] for check in own["checks"]}
    assert broken["XLA"] == "broken" and broken["CUDA libraries"] == "ok"
    assert "Kernels: plain, as XLA does not work here" in done.stderr
    refused = [line for line in done.stderr.splitlines() if "XLA does not work here, on GPU:0" in line]
    assert len(refused) == 2 and all("libdevice" in line for line in refused)
    assert all("Use --kernels=plain." in line for line in refused)


def test_paths_of_the_nvidia_packages_are_those_of_xla(fake):
    toolkit = fake.site / "nvidia" / "cuda_nvcc"
    show = "import official, os; print(os.environ.get('XLA_FLAGS')); print(os.environ['PATH'])"

    def paths(**variables):
        return programs.run("-c", show, **variables).stdout.splitlines()

    products = "--xla_gpu_enable_triton_gemm=false"
    assert paths() == [products, os.environ["PATH"]]
    toolkit.mkdir()
    flags = f"{products} --xla_gpu_cuda_data_dir={toolkit}"
    assert paths() == [flags, f"{os.environ['PATH']}:{toolkit}/bin"]
    assert paths(XLA_FLAGS="--xla_dump_to=x")[0] == f"--xla_dump_to=x {flags}"
    for own in ("--xla_gpu_enable_triton_gemm=true --xla_gpu_cuda_data_dir=/usr/local/cuda", "flags.txt"):
        assert paths(XLA_FLAGS=own)[0] == own


def test_libraries_are_loaded_that_tensorflow_does_not_look_for(fake):
    code = f"""
from official.io import gpus
gpus.DEVICES, gpus.tensorflow_build = {gpus.DEVICES!r}, lambda: {BUILD!r}
gpus.preload()
print(sorted(name for name in gpus.wanted_libraries({BUILD!r}) if gpus._path_in_memory(name)))
"""
    wanted = sorted(gpus.wanted_libraries(BUILD))
    assert programs.run("-c", code).stdout.strip() == str(wanted)
    assert programs.run("-c", code, CUDA_VISIBLE_DEVICES="-1").stdout.strip() == "[]"
