"""The error for bad input, functions for its messages, and its printing."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import re
import sys
from collections.abc import Collection, Sequence

_MOST_OF_NAMES = 120  # of a list of names within a message
# {package as it is imported: the extra that brings it}
_EXTRAS = {
    "backports": "zstd",
    "fsspec": "storage",
    "gcsfs": "gcs",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "openvino": "openvino",
    "prometheus_client": "serve",
    "py3langid": "languages",
    "pyarrow": "parquet",
    "ray": "ray",
    "s3fs": "s3",
    "tf2onnx": "onnx",
    "tornado": "serve",
    "wandb": "wandb",
    "wikiextractor": "wikipedia",
}


class ConfigError(ValueError):
    """Bad input or configuration. Its message is one line: what, received, allowed, which flag. Exit code 2.

    Attributes:
      details: {title: names}, complete lists of which the message may show only the first names.
    """

    def __init__(self, message: str, details: dict[str, list[str]] | None = None):
        super().__init__(message)
        self.details = details or {}

    @property
    def is_shortened(self) -> bool:
        """Whether `details` has names that the message omits."""
        return any(name not in str(self) for names in self.details.values() for name in names)


def report_error(program: str, message: str) -> None:
    """Prints an error as the last line on stderr: one line below 300 characters.

    Progress bars are cleared before.
    """
    _clear_bars()
    stream = sys.stderr
    if stream is None:  # closed
        return
    text = printable(f"{program}: {' '.join(message.split())}")
    encoding = getattr(stream, "encoding", None) or "utf-8"
    print(cut(text.encode(encoding, "backslashreplace").decode(encoding)), file=stream, flush=True)


def printable(text: str) -> str:
    """Returns a text as one line: line ends and terminal control characters are escaped."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)


def check_arguments(arguments: Sequence[str]) -> None:
    """Raises ConfigError for an argument that is not UTF-8, since no library would find the file that it
    names."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError as error:
            problem = f"{repr(argument)[1:-1][:100]} is not UTF-8 text (character {error.start + 1})"
            raise ConfigError(f"{problem}. Rename the file, or set a UTF-8 locale.") from None


def check_counts(least: int = 1, **values: int | None) -> None:
    """Raises ConfigError for values {name of the flag: value} below `least`; None is unset."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ConfigError(f"--{name}={value} is out of range. Allowed: {least} or more.")


def cut(text: str, most: int = 299) -> str:
    """Shortens a text to `most` characters: its beginning, which says what is wrong, and its end, which says
    what to do.
    """
    end = most // 3
    return text if len(text) <= most else f"{text[: most - end - 4]} .. {text[-end:]}"


def first_line(error: BaseException, most: int = 200) -> str:
    """Returns the beginning of an error's message, or its type if the message is empty."""
    text = getattr(error, "message", None) or str(error)  # TensorFlow's has more in its text
    return next(iter(text.strip().splitlines()), type(error).__name__)[:most]


def shortened(names: Sequence[str], most: int = _MOST_OF_NAMES) -> str:
    """Joins names with commas, and counts those left out.

    Shows as many as fit into `most` characters, at least one.
    """
    shown = list(names[:1])
    for name in names[1:]:
        if len(", ".join([*shown, name])) > most:
            break
        shown.append(name)
    left = len(names) - len(shown)
    return ", ".join(shown) + (f" and {left:,} more" if left else "")


def describe_names(problems: dict[str, list[str]]) -> str:
    """Formats {title: names} for a message: "missing: a, b and 7 more. unexpected: c".

    A title without names stands alone.
    """
    return ". ".join(
        f"{title}: {shortened(names, _MOST_OF_NAMES // len(problems))}" if names else title
        for title, names in problems.items()
    )


def _clear_bars() -> None:
    """Erases progress bars, since one that is closed later would be drawn below the error."""
    tqdm = sys.modules.get("tqdm")
    for bar in list(getattr(tqdm.tqdm, "_instances", ())) if tqdm else ():
        bar.leave = False
        bar.close()


class PeerError(RuntimeError):
    """Another process of the run was lost, or did not come. Its message is one line. Exit code 4: start all
    processes again."""


def suggest(name: str, known) -> str:
    """Returns ' (did you mean X?)' for the known name nearest to `name`, or an empty string."""
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def check_one_of(told: str, value: str, allowed: Collection[str]) -> None:
    """Raises ConfigError where a value, which `told` shows, is not one of the allowed ones."""
    if value not in allowed:
        raise ConfigError(f"{told} is not one of {', '.join(allowed)}{suggest(value, allowed)}.")


def counted(number: int, noun: str) -> str:
    """Returns '1 file', '1,200 files', '2 processes'."""
    return f"{number:,} {noun}" + ("" if number == 1 else "es" if noun.endswith("s") else "s")


def nearest_multiples(value: int, divisor: int) -> str:
    """Returns the nearest positive multiples of `divisor` around `value`, as text: '440 or 528'."""
    below = value // divisor * divisor
    return f"{below} or {below + divisor}" if below else f"{divisor}"


def how_to_install(extra: str) -> str:
    """Returns the command that installs an extra, from the source folder: the package is on no index."""
    return f"pip install '.[{extra}]' in the source folder"


_ATTRIBUTE = re.compile(r"^  (\w+): (.*(?:\n    .*)*)", re.MULTILINE)


def attribute_texts(docstring: str | None) -> dict[str, str]:
    """Returns {name: text}, each in one line, of the "Attributes:" of a class; {} without them."""
    found = _ATTRIBUTE.findall(inspect.cleandoc(docstring or "").partition("Attributes:\n")[2])
    return {name: " ".join(text.split()) for name, text in found}


def check_docstrings(reader: str) -> None:
    """Raises ConfigError if Python runs without docstrings; `reader` says what they are needed for."""
    if sys.flags.optimize > 1:
        raise ConfigError(
            f"python -OO and PYTHONOPTIMIZE=2 remove the docstrings, which {reader}. Unset PYTHONOPTIMIZE,"
            " or set it to 1."
        )


def installed_versions(*packages: str) -> dict[str, str]:
    """Returns {package: version} of those that are installed; imports none."""
    import importlib.metadata  # late: it loads for 45 ms

    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def check_installed(what: str, extra: str, *packages: str) -> None:
    """Raises ConfigError where one of the packages of an extra is not installed; imports none.

    Args:
      what: the flag or command that needs them, for the message.
    """
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise ConfigError(
                f"{what} needs the package {package}, which is not installed: {how_to_install(extra)}."
            )


def describe_missing(error: ModuleNotFoundError) -> str | None:
    """Returns a message about a package that is not installed; None for a module of this package or of
    Python's library, whose absence is a bug."""
    package = (error.name or "official").partition(".")[0]
    if package == "official" or package in getattr(sys, "stdlib_module_names", ()):
        return None
    if package in _EXTRAS:
        return f"the package {package} is not installed: {how_to_install(_EXTRAS[package])}."
    return (
        f"the package {package} is not installed in {sys.executable}. Run ./scripts/setup_env.sh in the"
        " source folder and take its .venv/bin/python, or pip install . there."
    )
