"""`bert doctor`: checks of this machine on one page."""

import json

from official.cli import command_line


class Doctor(command_line.Flags):
    """Checks this machine: driver, CUDA libraries, devices, TensorFlow's build, XLA, limits, packages.

      bert doctor
      bert doctor --json --data_dir=data > doctor.json

    Exit codes: 0 no problem, 1 warnings, 2 something is broken. The output has no secrets and no user names,
    so you can paste it into a bug report.

    Attributes:
      json: Print {"checks": [{name, status, found, wanted, advice}]}, for programs.
      data_dir: Folder or glob of data, on this machine or in a store: also measure how fast it is read.
    """

    json: bool = False
    data_dir: str | None = None


def run_doctor() -> int:
    flags = Doctor.parse()
    # Imported after the flags are checked, to keep --help fast.
    from official.distribution import machine_checks

    checks = machine_checks.run_checks(flags.data_dir)
    if flags.json:
        print(json.dumps({"checks": [check._asdict() for check in checks]}, indent=2))
    else:
        print(_page(checks))
    return max(machine_checks.STATUSES.index(check.status) for check in checks)


def _page(checks: list) -> str:
    """Returns a line a check, and below those that are not ok what is wanted and what to do."""
    width, lines = max(len(check.name) for check in checks), []
    for check in checks:
        lines.append(f"{check.status:<8} {check.name:<{width}}  {check.found}")
        if check.status != "ok":
            more = [f"wanted: {check.wanted}"] * bool(check.wanted) + [check.advice] * bool(check.advice)
            lines += [f"{'':<8} {'':<{width}}  {text}" for text in more]
    return "\n".join(lines)
