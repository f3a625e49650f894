"""Another number of words than the source has: rows are cut off and kept beside the result, or come back.

With the published defaults, BERT-large loses 122 of its 30,522 words on the way to Graphcore. Kept, they are
0.5 MB beside 655 MB, and the way back has them all; without them it would end at 30,400 words, which no
published vocabulary has.
"""

import os

import numpy as np

from official.checkpoint import publication
from official.checkpoint.containers import hf_folder
from official.checkpoint.errors import DamagedError
from official.checkpoint.mapping import canonical
from official.checkpoint.mapping import tensors as tensors_lib
from official.checkpoint.mapping.tensors import Tensor, Tensors
from official.checkpoint.options import Options
from official.io.errors import ConfigError, shortened

SIDECAR = "vocab_rows.safetensors"  # with a checkpoint whose vocabulary was cut: the words that were cut off
_WORDS = "bert/embeddings/word_embeddings"


def with_vocabulary(
    tensors: Tensors, source: str, options: Options
) -> tuple[Tensors, dict[str, int], Tensors]:
    """Cuts or fills up the vocabulary: word embeddings, output bias and their slots together.

    Returns:
      The tensors; {from, to, restored: words from the sidecar file of the source, filled: words of zeros,
      cut: words cut off}; and {name: tensor of what was cut off}.

    Raises:
      ConfigError: where one of these tensors has another number of words than the embeddings, or the sidecar
        does not fit.
    """
    have = tensors[_WORDS].shape[0]
    by_word = _names_by_word(tensors, have, source)
    more = options.vocab_size is None or options.vocab_size > have
    rows = _read_sidecar(sidecar_path(source)) if more else {}
    restored = rows[_WORDS].shape[0] if rows else 0
    changed = dict(tensors)
    for name in rows.keys() & set(by_word):
        changed[name] = _with_rows_of_sidecar(
            name, tensors[name], rows[name], restored, sidecar_path(source), options
        )
    want = options.vocab_size or have + restored
    cut = {
        name: tensors_lib.rows_from(changed[name], want) for name in by_word if changed[name].shape[0] > want
    }
    for name in by_word:
        changed[name] = tensors_lib.with_rows(changed[name], want)
    return (
        changed,
        {
            "from": have,
            "to": want,
            "restored": min(restored, want - have) if rows else 0,
            "filled": max(want - have - restored, 0),
            "cut": max(have - want, 0),
        },
        cut,
    )


def _names_by_word(tensors: Tensors, words: int, source: str) -> list[str]:
    """Returns the names of tensors with a row for each word. Raises ConfigError where one has another number
    of rows."""
    names = [name for name in tensors if name.startswith(canonical.VOCABULARY)]
    other = [f"{name} {list(tensors[name].shape)}" for name in names if tensors[name].shape[0] != words]
    if other:
        raise ConfigError(
            f"{source}: the word embeddings have {words} words, and another number have {shortened(other)}."
        )
    return names


def _with_rows_of_sidecar(
    name: str, tensor: Tensor, rows: Tensor, words: int, path: str, options: Options
) -> Tensor:
    """Joins in the wider type, so that nothing is lost where the result is float32; else the result has the
    tensor's type."""
    if rows.shape != (words, *tensor.shape[1:]):
        raise ConfigError(
            f"{path} does not belong to this checkpoint: {name} {list(rows.shape)} there,"
            f" {list(tensor.shape)} here. Remove it."
        )
    wide = np.result_type(np.float32, *(one.dtype for one in (tensor, rows) if one.dtype.kind == "f"))
    joined = tensors_lib.joined([tensors_lib.cast(tensor, wide), tensors_lib.cast(rows, wide)], 0)
    return joined if options.precision else tensors_lib.checked_cast(name, joined, tensor.dtype)


def sidecar_path(location: str) -> str:
    """Returns the path of the words that were cut off a checkpoint: in a Hugging Face folder, or beside a
    bundle or file."""
    location = location.rstrip("/") or location
    if os.path.basename(location) == hf_folder.WEIGHTS:
        location = os.path.dirname(location) or "."
    if os.path.isdir(location) and not os.path.exists(location + ".index"):
        return os.path.join(location, SIDECAR)
    return f"{location}.{SIDECAR}"


def _source_in_sidecar(name: str) -> str:
    return f"{SIDECAR}:{name}"


def _read_sidecar(path: str) -> Tensors:
    """Raises ConfigError for a damaged file."""
    if not os.path.exists(path):
        return {}
    try:
        rows = hf_folder.read_file(path)
        rows = {
            name: tensors_lib.of_array(tensor.read(), _source_in_sidecar(name))
            for name, tensor in rows.items()
        }
        if _WORDS not in rows:
            raise DamagedError(f"it has no {_WORDS}")
    except (DamagedError, OSError) as error:
        raise ConfigError(
            f"{path}, with the words that were cut off, cannot be read ({error}). Restore it, or remove it to"
            " do without."
        ) from None
    return rows


def write_sidecar(rows: Tensors, location: str) -> None:
    """Writes the rows that were cut off beside a checkpoint; nothing where there are none. Raises
    ConfigError."""
    if rows:
        from safetensors.numpy import save_file

        with publication.writing_to(location):
            save_file(
                {name: np.ascontiguousarray(tensor.read()) for name, tensor in rows.items()},
                sidecar_path(location),
            )


def restored(result: Tensors, vocabulary: dict) -> dict[str, str]:
    """Returns {name: reason} of the tensors with words that came back; `vocabulary` is of
    `with_vocabulary`."""
    if not vocabulary["restored"]:
        return {}
    reason = (
        f"{vocabulary['restored']} words of it come from {SIDECAR}, with those that an earlier conversion"
        " cut off"
    )
    return {
        name: reason
        for name, tensor in result.items()
        if any(one.startswith(f"{SIDECAR}:") for one in tensor.sources)
    }
