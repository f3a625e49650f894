"""Serves a model over HTTP: TensorFlow Serving's REST contract, the v2 inference protocol, and a page.

  bert serve --export_dir=models/bert --port=8501
  bert serve --export_dir=runs/squad --port=0

What is served is an export, a run or a checkpoint, or a folder of numbered versions of these, whose greatest
is served: a greater one that appears takes its place. SIGTERM and Ctrl-C stop the server after it has
answered what it has accepted. Log lines go to stderr, a JSON object each.
"""

import re
from typing import TYPE_CHECKING

from official.cli import ask, command_line
from official.io.errors import ConfigError, check_installed
from official.serving.server.settings import Endpoint, Limits

if TYPE_CHECKING:  # it loads TensorFlow
    from official.serving.server.versions import Loading

_METHODS = ("answer", "classify", "tag", "fill_mask", "embed")
_SECS = (0.001, 86400)
_LONGEST_TOKEN = 4096


class Main(command_line.LowerCaseFlag, command_line.LengthFlag, ask.InferenceFlags):
    """Flags of the command.

    Attributes:
      export_dir: An export, a run's folder or a checkpoint of any format, or a folder of versions 1, 2, ...
      vocab_file: Vocabulary. Unset: the one beside the weights, or that of the run.
      methods: Comma-separated, of answer, classify, tag, fill_mask, embed. Unset: all that the model can.
      model_name: The model's name in addresses.
      host: Address to listen on; 0.0.0.0 for all of this machine's.
      port: Port to listen on; 0 for a free one, which is printed.
      token_file: File with a token that requests must have: Authorization: Bearer TOKEN.
      allowed_hosts: Comma-separated names that requests may have as Host, beside localhost, 127.0.0.1, ::1
        and --host; '*' for all. Unset: with --token_file, or where --host is no loopback address, all.
      allowed_origins: Comma-separated SCHEME://NAME[:PORT] of pages that may ask, beside those of the
        allowed hosts; '*' for all. Unset: all where all hosts are allowed, else none.
      batch_delay_ms: How long an idle model waits for further requests.
      max_batch_size: Sequences that are computed together.
      max_batch_tokens: Tokens that are computed together, about: at 4 characters each.
      max_queue: Requests that wait for the model; above it they get 429.
      max_request_bytes: Bytes of a request's body; above it 413.
      max_instances: Instances of a request.
      max_text_chars: Characters of a text.
      max_connections: Connections that are open at once; further ones are closed.
      request_timeout_secs: From a request's headers to its answer; after it 504.
      idle_timeout_secs: A connection is closed when for so long no headers of a request are complete, or
        its client does not read the answer.
      body_timeout_secs: From a request's headers to the end of its body; after it: closed.
      poll_secs: Between looks for newer versions in a folder of numbered ones.
      grace_secs: When the server stops: for the requests that it has accepted.
    """

    RANGES = dict(port=(0, 65535), poll_secs=(0.1, 86400), grace_secs=(0, 86400))
    RANGES |= dict.fromkeys(("request_timeout_secs", "idle_timeout_secs", "body_timeout_secs"), _SECS)
    RANGES |= dict(batch_delay_ms=(0, 10_000), max_batch_size=(1, 4096), max_batch_tokens=(1, 2**24))
    RANGES |= dict(max_queue=(1, 10**6), max_request_bytes=(1024, 2**28), max_instances=(1, 10**5))
    RANGES |= dict(max_text_chars=(1, 2**24), max_connections=(1, 10**5))
    OF = (Endpoint, Limits)
    vocab_file: str | None = None
    methods: str | None = None
    model_name: str = "bert"
    token_file: str | None = None
    allowed_hosts: str | None = None
    allowed_origins: str | None = None


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


def settings_of(flags: Main) -> tuple[Endpoint, Limits]:
    """Returns the address of the server and its limits. Raises ConfigError."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", flags.model_name):
        raise ConfigError(
            f"--model_name={flags.model_name[:100]}, expected 1 to 64 letters, digits, '_', '.' and '-'."
        )
    token = read_token(flags.token_file) if flags.token_file else None
    allowed = {
        name: [part.strip() for part in (getattr(flags, name) or "").split(",") if part.strip()]
        for name in ("allowed_hosts", "allowed_origins")
    }
    return flags.make(Endpoint, model=flags.model_name, token=token, **allowed), flags.make(Limits)


def loading_of(flags: Main) -> "Loading":
    from official.serving.server.versions import Loading

    methods = tuple(command_line.read_list(flags.methods, "methods", _METHODS)) if flags.methods else None
    settings = ask.begin(flags)
    return Loading(
        flags.vocab_file, flags.do_lower_case, settings, flags.calibration_file, methods, flags.max_seq_length
    )


def main() -> int:
    flags = Main.parse()
    endpoint, limits = settings_of(flags)
    check_installed("the server", "serve", "prometheus_client", "tornado")
    from official.serving.server import reading

    reading.start_ahead()  # it loads TensorFlow while this process does, too
    from official.serving.server import application

    return application.run(endpoint, limits, loading_of(flags), lambda line: print(line, flush=True))
