"""Sends the metrics of a run to Weights & Biases, in addition to metrics.jsonl, which stays the record."""

import importlib
import operator
import os
import secrets
import tempfile
from collections.abc import Callable
from typing import Any

from absl import logging

from official import config as config_lib
from official.config import Config, ConfigError
from official.io.errors import how_to_install
from official.io.files import is_remote
from official.io.writing import put_file, read_lines
from official.reporting.metrics import finite_numbers, plain_value
from official.reporting.result import EXIT_CODES
from official.reporting.tensorboard import NumbersCallback, Tags

ID_FILE_NAME = "wandb_id.txt"
# If the server cannot be reached, W&B would by default try for ten minutes or more before training
# starts.
_PATIENCE = {
    "x_graphql_retry_max": 3,
    "x_graphql_retry_wait_max_seconds": 5,
    "x_graphql_timeout_seconds": 20,
    "finish_timeout": 120,
}


class WandbRun(NumbersCallback):
    """The W&B run of a run's folder: all processes of the run, also after a kill, resume the same one.

    Its files are in model_dir/wandb. Numbers are train/NAME and eval/NAME over the optimizer step. Errors of
    W&B after the start become one warning.
    """

    def __init__(self, config: Config, tags: Tags | None = None):
        """Starts or resumes the W&B run; `tags`: additional names of the numbers.

        Raises:
          ConfigError: wandb is not installed, or has no API key while it is not offline.
        """
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # for W&B; offline it prints warnings
        try:
            wandb = importlib.import_module("wandb")
        except ImportError:
            problem = f"wandb is set but the wandb package is not installed: {how_to_install('wandb')}"
            raise ConfigError(f"{problem}, or drop --wandb.") from None
        self._run: Any = None
        super().__init__(tags)
        local = not is_remote(config.model_dir)
        folder = config.model_dir if local else tempfile.mkdtemp(prefix="wandb-")
        settings = {name: config[name] for name in config_lib.FIELDS}
        sizes = {f"model.{name}": value for name, value in vars(config.model).items()}
        project, _, name = (config.wandb_name or "").rpartition("/")
        arguments = dict(
            dir=folder,
            id=_run_id(config.model_dir),
            resume="allow",
            project=project or (tags.project if tags else "bert-tf2"),
            name=name or os.path.basename(os.path.normpath(config.model_dir)),
            config=settings | sizes,
            allow_val_change=True,
            settings=wandb.Settings(console="off", silent=True, **_PATIENCE),
        )
        os.makedirs(folder, exist_ok=True)
        self._run = _start(wandb, arguments)
        for name in ("step", "train/*", "eval/*", *(tags.folders if tags else ())):
            over = {} if name == "step" else {"step_metric": "step"}
            self._attempt(operator.methodcaller("define_metric", name, **over))

    def on_result(self, status: str, result: dict) -> None:
        """Ends the W&B run with the result as its summary."""
        known = {name: value for name, value in plain_value(result).items() if value is not None}
        for name in ("config", "examples"):
            known.pop(name, None)
        self._attempt(lambda run: run.summary.update(known))
        self._finish(EXIT_CODES.get(status, 1))

    def close(self) -> None:
        """Ends the W&B run as a crash if it has not ended yet."""
        self._finish(1)

    def send(self, split: str, step: int, values: dict, others: dict[str, float]) -> None:
        """Sends the finite numbers of one line."""
        line = {f"{split}/{name}": value for name, value in finite_numbers(values).items()}
        samples = {"samples": plain_value(values["samples"])} if "samples" in values else {}
        # W&B's own step can only grow, but a resumed process repeats some steps. So the step is sent as one
        # of the numbers.
        line = {**others, "step": int(step), **samples, **line}
        self._attempt(lambda run: run.log(line))

    def _finish(self, exit_code: int) -> None:
        self._attempt(lambda run: run.finish(exit_code=exit_code))
        self._run = None

    def _attempt(self, action: Callable[[Any], Any]) -> None:
        if self._run is None:
            return
        try:
            action(self._run)
        except Exception as error:  # pylint: disable=broad-except  # W&B's errors must not end the training
            self._run = None
            text = "W&B failed and gets no further metrics of this run; metrics.jsonl has them: %s"
            logging.warning(text, _one_line(error))


def _run_id(model_dir: str) -> str:
    """Returns the W&B id in the folder of the run; makes and stores one if there is none."""
    path = os.path.join(model_dir, ID_FILE_NAME)
    if found := b"".join(read_lines(path)).decode().strip():
        return found
    run_id = secrets.token_hex(4)
    put_file(path, run_id + "\n")
    return run_id


def _start(wandb, arguments: dict):
    """Starts the W&B run; if the server cannot be reached, an offline one."""

    def begin(**more: str) -> Any:
        wandb.setup(settings=arguments["settings"])  # first: otherwise init prints before it is silenced
        return wandb.init(**arguments, **more)

    try:
        run = begin()
    except wandb.errors.UsageError as error:
        raise ConfigError(f"wandb: {_one_line(error)} Or set WANDB_MODE=offline, or drop --wandb.") from None
    except Exception as error:  # pylint: disable=broad-except
        text = "W&B cannot be reached, the metrics for it are kept in %s/wandb: %s"
        logging.warning(text, arguments["dir"], _one_line(error))
        wandb.teardown()  # the failed run still holds the id
        run = begin(mode="offline")
    where = run.url or f"offline; upload it with: wandb sync {os.path.dirname(run.dir)}"
    logging.info("W&B run %s, %s", run.id, where)
    return run


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
