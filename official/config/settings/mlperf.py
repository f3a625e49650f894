"""Settings: MLPerf's evaluation rules and its log."""

from __future__ import annotations

import dataclasses

from official.config.setting import PRETRAIN, Section, setting


@dataclasses.dataclass(frozen=True)
class MLPerf:
    """MLPerf's evaluation rules and its log."""

    eval_rule: str | None = setting(
        None,
        "Evaluate by a published rule, which fills in do_eval, steps_between_eval, "
        "steps_before_eval_start, steps_per_loop, num_eval_samples and stop_threshold. mlperf_0.7: from "
        "3,000,000 sequences on, every 500,000, first 10,000 records, 0.712 (0.706 from a batch of 8192). "
        "mlperf_1.0: every floor(0.05 * (230.23 * batch + 3,000,000) / 25,000) * 25,000 sequences, 10,000 "
        "records of --eval_files, 0.720.",
        choices=("mlperf_0.7", "mlperf_1.0"),
        tasks=PRETRAIN,
    )
    mllog_file: str | None = setting(
        None, "Where the MLPerf log is written. Unset: mllog.txt in --model_dir.", tasks=PRETRAIN
    )
    mllog_to_stdout: bool = setting(False, "Write the MLPerf log's lines to stdout, too.", tasks=PRETRAIN)
    clear_caches: bool = setting(
        True,
        "Drop the local data files from the operating system's page cache before training, as MLPerf asks "
        "(the log's cache_clear).",
    )
    submission_org: str = setting("unspecified", "MLPerf log: organisation.")
    submission_platform: str | None = setting(
        None, "MLPerf log: platform. Unset: kind and number of the devices, e.g. gpu-8."
    )
    submission_division: str = setting("closed", "MLPerf log: division.", choices=("closed", "open"))
    submission_status: str = setting(
        "research", "MLPerf log: status.", choices=("cloud", "onprem", "preview", "research")
    )


SECTION = Section("MLPerf", MLPerf, evaluation=False)
