"""The peak of memory of a training step on the CPU: read from the kernel, in a process of its own."""

import json
import os
import subprocess

from official.cli import command_line
from official.config import Config, ConfigError

# Freed memory goes back to the system at once, so that what is resident is what is in use: no pools in
# TensorFlow or glibc.
ALLOCATION = {
    "TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1",
    "MALLOC_ARENA_MAX": "1",
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "0",
}


def common_arguments(model: str) -> list[str]:
    """Returns the flags that all cases have: synthetic data, on one CPU."""
    return [
        f"--bert_config_file={model}",
        "--model_dir=unused",
        "--use_synthetic_data",
        "--distribution_strategy=one_device",
        "--num_gpus=0",
    ]


def resident_bytes(name: str) -> int:
    """Returns VmRSS (now) or VmHWM (highest since the last reset) of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(f"{name}:"))


def reset_highest() -> None:
    with open("/proc/self/clear_refs", "w", encoding="ascii") as file:
        file.write("5")


def measure_steps(config: Config, steps: int) -> list[int]:
    """Returns the peak memory of each of `steps` training steps, in bytes above that before the step."""
    from official.tasks import TASKS
    from official.training import step_benchmark

    step = step_benchmark.make_step(config, TASKS[config.task], steps=1)
    peaks = []
    for _ in range(steps + 1):  # the first compiles
        reset_highest()
        before = resident_bytes("VmRSS")
        step()
        peaks.append(resident_bytes("VmHWM") - before)
    return peaks[1:]


def plan_and_measure(config: Config, steps: int) -> tuple[dict[str, int], list[int]]:
    """Returns (`bytes` of the plan, the peaks of some steps), in this process."""
    from official.planning import plan
    from official.tasks import TASKS

    return plan.make_plan(config, TASKS[config.task])["bytes"], measure_steps(config, steps)


def run_in_process(arguments: list[str], model: str, usual: bool = False) -> dict:
    """Returns the JSON output of this command for some arguments, run in a new process, whose memory nothing
    else has touched; `usual` leaves the memory allocation at its defaults."""
    command = [*command_line.in_new_process("benchmark", "memory"), *arguments, f"--model={model}"]
    environment = {**os.environ, **({} if usual else ALLOCATION)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines()
        raise ConfigError(f"{' '.join(arguments)} failed: {said[-1] if said else done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])
