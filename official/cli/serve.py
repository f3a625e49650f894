"""Serves a model over HTTP: TensorFlow Serving's REST contract, the v2 inference protocol, and a page.

  bert serve --export_dir=models/bert --port=8501
  bert serve --export_dir=runs/squad --port=0

What is served is an export, a run or a checkpoint, or a folder of numbered versions of these, whose greatest
is served: a greater one that appears takes its place. SIGTERM and Ctrl-C stop the server after it has
answered what it has accepted. Log lines go to stderr, a JSON object each.
"""

import argparse
import re
from typing import TYPE_CHECKING

from official.cli import ask, command_line
from official.io.errors import ConfigError, check_installed

if TYPE_CHECKING:  # they load TensorFlow
    from official.serving.server.settings import Endpoint, Limits
    from official.serving.server.versions import Loading

_METHODS = ("answer", "classify", "fill_mask", "embed")
_DAY = 86400
_LONGEST_TOKEN = 4096
# {flag: (default, smallest, largest, help)}
_LIMITS: dict[str, tuple[float, float, float, str]] = {
    "max_batch_size": (32, 1, 4096, "Sequences that are computed together."),
    "max_batch_tokens": (16384, 1, 2**24, "Tokens that are computed together, about: at 4 characters each."),
    "max_queue": (256, 1, 10**6, "Requests that wait for the model; above it they get 429."),
    "max_request_bytes": (2**20, 1024, 2**28, "Bytes of a request's body; above it 413."),
    "max_instances": (64, 1, 10**5, "Instances of a request."),
    "max_text_chars": (50_000, 1, 2**24, "Characters of a text."),
    "max_connections": (512, 1, 10**5, "Connections that are open at once; further ones are closed."),
    "request_timeout_secs": (30.0, 0.001, _DAY, "From a request's headers to its answer; after it 504."),
    "idle_timeout_secs": (
        60.0,
        0.001,
        _DAY,
        "A connection is closed when for so long no headers of a request are complete, or its client does not"
        " read the answer.",
    ),
    "body_timeout_secs": (
        10.0,
        0.001,
        _DAY,
        "From a request's headers to the end of its body; after it: closed.",
    ),
    "poll_secs": (5.0, 0.1, _DAY, "Between looks for newer versions in a folder of numbered ones."),
    "grace_secs": (10.0, 0.0, _DAY, "When the server stops: for the requests that it has accepted."),
}


def make_parser() -> command_line.Parser:
    parser = command_line.Parser(__doc__)
    add = parser.add_argument
    add(
        "--export_dir",
        required=True,
        help="An export, a run's folder or a checkpoint of any format, or a folder of versions 1, 2, ...",
    )
    add("--vocab_file", help="Vocabulary. Unset: the one beside the weights, or that of the run.")
    command_line.add_lower_case_flag(parser)
    command_line.add_length_flag(parser)
    ask.add_inference_flags(parser)
    add("--methods", help=f"Comma-separated, of {', '.join(_METHODS)}. Unset: all that the model can.")
    add("--model_name", default="bert", help="The model's name in addresses.")
    add("--host", default="127.0.0.1", help="Address to listen on; 0.0.0.0 for all of this machine's.")
    add("--port", type=int, default=8501, help="Port to listen on; 0 for a free one, which is printed.")
    add("--token_file", help="File with a token that requests must have: Authorization: Bearer TOKEN.")
    add(
        "--allowed_hosts",
        help="Comma-separated names that requests may have as Host, beside localhost, 127.0.0.1, ::1 and"
        " --host; '*' for all. Unset: with --token_file, or where --host is no loopback address, all.",
    )
    add(
        "--allowed_origins",
        help="Comma-separated SCHEME://NAME[:PORT] of pages that may ask, beside those of the allowed hosts;"
        " '*' for all. Unset: all where all hosts are allowed, else none.",
    )
    add(
        "--batch_delay_ms", type=float, default=5.0, help="How long an idle model waits for further requests."
    )
    for name, (default, _, _, text) in _LIMITS.items():
        add(f"--{name}", type=type(default), default=default, help=text)
    return parser


def parse_flags() -> argparse.Namespace:
    flags = make_parser().parse()
    command_line.check_ranges(flags, {"port": (0, 65535), "batch_delay_ms": (0, 10_000)})
    command_line.check_ranges(flags, {name: row[1:3] for name, row in _LIMITS.items()})
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", flags.model_name):
        raise ConfigError(
            f"--model_name={flags.model_name[:100]}, expected 1 to 64 letters, digits, '_', '.' and '-'."
        )
    return flags


def read_token(path: str) -> bytes:
    """Returns the token that a file holds. Raises ConfigError, which does not show it."""
    try:
        with open(path, "rb") as file:
            token = file.read(_LONGEST_TOKEN + 2).strip()
    except OSError as error:
        raise ConfigError(f"--token_file={path}: {error.strerror or error}.") from None
    if not re.fullmatch(rb"[!-~]+", token) or len(token) > _LONGEST_TOKEN:
        raise ConfigError(
            f"--token_file={path}: expected one token of 1 to {_LONGEST_TOKEN:,} letters, digits and signs of"
            " ASCII, without spaces."
        )
    return token


def place_of(flags: argparse.Namespace) -> "Endpoint":
    from official.serving.server.settings import Endpoint

    token = read_token(flags.token_file) if flags.token_file else None
    hosts, origins = (_listed(given) for given in (flags.allowed_hosts, flags.allowed_origins))
    return Endpoint(
        flags.export_dir, flags.model_name, flags.host, flags.port, token, flags.poll_secs, hosts, origins
    )


def _listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def limits_of(flags: argparse.Namespace) -> "Limits":
    import dataclasses

    from official.serving.server.settings import Limits

    return Limits(**{field.name: getattr(flags, field.name) for field in dataclasses.fields(Limits)})


def loading_of(flags: argparse.Namespace) -> "Loading":
    from official.serving.server.versions import Loading

    methods = tuple(command_line.read_list(flags.methods, "methods", _METHODS)) if flags.methods else None
    settings = ask.begin(flags)
    return Loading(
        flags.vocab_file, flags.do_lower_case, settings, flags.calibration_file, methods, flags.max_seq_length
    )


def main() -> int:
    flags = parse_flags()
    check_installed("the server", "serve", "prometheus_client", "tornado")
    from official.serving.server import reading

    reading.start_ahead()  # it loads TensorFlow while this process does, too
    from official.serving.server import application

    place, limits, loading = place_of(flags), limits_of(flags), loading_of(flags)
    return application.run(place, limits, loading, lambda line: print(line, flush=True))
