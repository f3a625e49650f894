"""Serves a model over HTTP: TensorFlow Serving's REST contract, the v2 inference protocol, and a page.

  bert serve --export_dir=models/bert --port=8501
  bert serve --export_dir=runs/squad --port=0

--export_dir is an export, a run, a checkpoint, or a folder of numbered versions of these. The highest version
is served; a new, higher one replaces it while the server runs. SIGTERM and Ctrl-C stop the server after it
has answered the accepted requests. Logs go to stderr, one JSON object per line.
"""

import re
from typing import TYPE_CHECKING

from official.cli import ask, command_line
from official.io import files
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
      vocab_file: Vocabulary. Unset: the one in the folder of the weights or run.
      methods: Comma-separated methods to serve, of answer, classify, tag, fill_mask, embed. Unset: all that
        the model supports.
      model_name: Name of the model in URLs.
      host: Address to listen on; 0.0.0.0 for all addresses of this machine.
      port: Port to listen on; 0 for a free one, which is printed.
      token_file: File with a token that requests must send: Authorization: Bearer TOKEN.
      allowed_hosts: Comma-separated host names that requests may have as Host, in addition to localhost,
        127.0.0.1, ::1 and --host; '*' for all. Unset: all with --token_file, or if --host is not a loopback
        address.
      allowed_origins: Comma-separated SCHEME://NAME[:PORT] of web pages that may send requests, in addition
        to those of the allowed hosts; '*' for all. Unset: all if all hosts are allowed, else none.
      batch_delay_ms: How long an idle model waits for more requests to batch.
      max_batch_size: Maximum number of sequences per batch.
      max_batch_tokens: Approximate maximum number of tokens per batch, counting 4 characters per token.
      max_queue: Maximum number of waiting requests; further ones get status 429.
      max_request_bytes: Maximum size of a request body; larger ones get status 413.
      max_instances: Maximum number of instances per request.
      max_text_chars: Maximum number of characters per text.
      max_connections: Maximum number of open connections; further ones are closed.
      request_timeout_secs: Maximum time from the headers of a request to its answer; then status 504.
      idle_timeout_secs: Close a connection if it takes this long to send complete request headers, or to read
        an answer.
      body_timeout_secs: Maximum time from the headers of a request to the end of its body; then the
        connection is closed.
      poll_secs: Interval of checks for new versions in a folder of numbered versions.
      grace_secs: When the server stops: maximum time to answer the accepted requests.
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
    token = files.read_bytes(path, f"--token_file={path}").strip()
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
