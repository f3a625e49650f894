"""Environment variables that Poplar reads when it is loaded. What a person has set stays."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import MutableMapping

from official.config import Config, ConfigError

FLAGS, ENGINE = "TF_POPLAR_FLAGS", "POPLAR_ENGINE_OPTIONS"


def prepare(config: Config, environment: MutableMapping[str, str] = os.environ) -> None:
    """Sets TF_POPLAR_FLAGS and POPLAR_ENGINE_OPTIONS for a run; to be called before TensorFlow is loaded.

    Flags and keys that are there already keep their values.

    Raises:
      ConfigError: where POPLAR_ENGINE_OPTIONS holds no JSON object.
    """
    flags = _with_flags(environment.get(FLAGS, ""), poplar_flags(config))
    if flags:
        environment[FLAGS] = flags
    options = engine_options(config)
    if options:
        environment[ENGINE] = json.dumps({**options, **_engine_options_of(environment)})


def poplar_flags(config: Config) -> dict[str, str]:
    """Returns {flag of TF_POPLAR_FLAGS: value, "" for none} of a run."""
    flags = {}
    if config.executable_cache_path:
        flags["--executable_cache_path"] = config.executable_cache_path
    if config.synthetic_input:  # numbers are made on the device: nothing is sent
        flags["--use_synthetic_data"] = ""
        flags["--synthetic_data_initializer"] = "0"
    return flags


def engine_options(config: Config) -> dict[str, str]:
    """Returns {key of POPLAR_ENGINE_OPTIONS: value} of a run.

    Source: Graphcore's TF1 BERT, its README on profiling and its launch scripts.
    """
    options = {}
    if config.memory_profile or config.execution_profile:
        kind = "execution" if config.execution_profile else "memory"
        folder = config.profile_dir or config.model_dir or "."
        options = {
            "autoReport.all": "true",
            "autoReport.directory": os.path.join(folder, f"{kind}_report"),
            "autoReport.outputExecutionProfile": "true" if config.execution_profile else "false",
            "debug.allowOutOfMemory": "true",
            "debug.outputAllSymbols": "true",
        }
    if config.sync_replicas_independently:
        options["target.syncReplicasIndependently"] = "true"
    return options


def _with_flags(given: str, flags: dict[str, str]) -> str:
    """Returns a line of flags with those that it does not have yet."""
    words = shlex.split(given)
    known = {word.partition("=")[0] for word in words}
    words += [f"{name}={value}" if value else name for name, value in flags.items() if name not in known]
    return " ".join(map(shlex.quote, words))


def _engine_options_of(environment: MutableMapping[str, str]) -> dict[str, str]:
    text = environment.get(ENGINE) or "{}"
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"{ENGINE}={text[:80]!r} in the environment is no JSON object. Correct or unset it."
        )
    return found
