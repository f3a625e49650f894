"""The page on which people try a model: its files, and the headers that they are sent with.

The page talks to the server that it comes from, in TensorFlow Serving's REST contract. Addresses are relative
to its own, so that it works behind a prefix of a proxy, too, where that ends in a slash. It asks for

- `GET v1/models/NAME/metadata`: the signatures that the model has, and its version;
- `POST v1/models/NAME:predict` with `signature_name` and `instances`, of which every input is given, the
  optional ones as ''; every instance is an object. An answer has `predictions`, an error `error`.

The files hold nothing secret and need no token. A 401 to one of the calls makes the page ask for the token,
which it keeps in memory and sends as `Authorization: Bearer TOKEN`.
"""

import html
from importlib import resources

_NAME = "MODEL_NAME"  # in index.html: where the name of the model goes
_KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}

# Nothing from outside and nothing inline; as an image, only the icon, which is a data: address.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}


def files(model: str) -> dict[str, tuple[str, bytes]]:
    """Returns the files of the page.

    Args:
      model: its name in the server's addresses.

    Returns:
      {path: (content type, content)}: "/" and "/static/...".
    """
    folder = resources.files(__package__)
    page = folder.joinpath("index.html").read_text(encoding="utf-8")
    found = {"/": ("text/html; charset=utf-8", page.replace(_NAME, html.escape(model)).encode())}
    for file in sorted(folder.joinpath("static").iterdir(), key=lambda each: each.name):
        kind = _KINDS[file.name.rpartition(".")[2]]
        found[f"/static/{file.name}"] = (kind, file.read_bytes())
    return found
