"""`bert compare`: finished runs."""

from official.cli import command_line, outputs
from official.io.errors import ConfigError


class Compare(command_line.Flags):
    """Compares runs: a table of settings and results, a chart of their curves, and the MLPerf score of
    several seeds.

      bert compare runs/lr_3e-3 runs/lr_5e-3 --target=0.30 --output=comparison.png
      bert compare runs/seed_* --mlperf --ruleset=1.0.0

    Attributes:
      folders: Folders of runs (--model_dir).
      target: Masked-LM accuracy, or score of a task, to compare the time to. Unset: each run's
        stop_threshold.
      output: Chart to write: .png, .svg or .pdf.
      json: JSON file for the numbers.
      mlperf: Compute the MLPerf score of the runs, which must be one recipe with several seeds.
      ruleset: With --mlperf: rules whose reference convergence points apply, 1.0.0 to 5.0.0; unset: 1.0.0.
      overwrite: Replace existing files.
    """

    POSITIONAL = ("folders",)
    RANGES = {"target": (0, 1)}
    folders: list[str]
    target: float | None = None
    output: str | None = None
    json: str | None = None
    mlperf: bool = False
    ruleset: str | None = None
    overwrite: bool = False


def run_compare() -> None:
    flags = Compare.parse()
    outputs.check_files(flags, "json", picture="output")
    if flags.ruleset and not flags.mlperf:
        raise ConfigError(f"--ruleset={flags.ruleset} needs --mlperf. Add --mlperf, or drop --ruleset.")
    # After the flags are checked: these load TensorFlow.
    from official.reporting import comparison, convergence

    ruleset = flags.ruleset or "1.0.0"
    if ruleset not in convergence.RULESETS:
        raise ConfigError(f"--ruleset={ruleset} is not one of {', '.join(convergence.RULESETS)}.")
    runs = comparison.read_runs(flags.folders)
    values = comparison.compare(runs, flags.target)
    print(comparison.format_comparison(values))
    if flags.mlperf:
        values["mlperf"] = convergence.score(runs, ruleset)
        print(f"\n{convergence.format_score(values['mlperf'])}")
    if flags.output:
        outputs.write_picture(flags.output, comparison.plot_comparison(runs, flags.target))
        print(f"\n{flags.output}")
    if flags.json:
        outputs.write_json(flags.json, values)
