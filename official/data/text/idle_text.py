"""The parts of a text that the sentence splitter need not see.

The splitter's rules all need an end of a sentence, or what may be one, and look at the two words before it
and at those behind it up to the first that can begin a sentence. Text in the middle between two of these
places makes no difference: it is taken out, and a mark that no rule knows stands for it.

What it earns: the splitter has two fifths of the text to go through.
Source: https://github.com/microsoft/BlingFire/blob/master/ldbsrc/sbd/wbd.lex.utf8
"""

import string
from collections.abc import Iterator

import numpy as np

from official.data import compiled
from official.data.rows import ragged

MARK = "\ue000"
_MARK = MARK.encode()
_BEHIND_BYTES = 22  # kept behind an end: punctuation, and "Unfortunately", ":123 - 456 " or "( xviii ) "
_BEFORE_BYTES = 12  # kept before an end
_LEAST_BYTES = 16  # that are taken out
_MOST_WORD_BYTES = 24  # as far the blank is looked for at which a part begins or ends
_MOST_PUNCTUATION = 6  # bytes that follow each other; the rules pass over any number of them
_SIZES = np.array([_BEHIND_BYTES, _BEFORE_BYTES, _LEAST_BYTES, _MOST_WORD_BYTES, _MOST_PUNCTUATION], np.int64)
# Classes of bytes: what may be an end, or not known not to be one; punctuation and blanks; letters, the Latin
# ones of two bytes among them, and digits. An end of a sentence, "[" and ":" begin what the rules look for
# behind a sentence.
_END_OR_OTHER, _PUNCTUATION, _LETTER = b"\0", b"\1", b"\2"
_LETTERS = (string.ascii_letters + string.digits).encode() + bytes([*range(0x80, 0xC0), 0xC3, 0xC4, 0xC5])
_PUNCTUATIONS = b"\"#$%&'()*+,-/;<=>@\\^_`{|}~ "
NO_ENDS = _LETTERS + _PUNCTUATIONS
_CLASSES = b"".join(
    _LETTER if code in _LETTERS else _PUNCTUATION if code in _PUNCTUATIONS else _END_OR_OTHER
    for code in range(256)
)


def take_out(text: bytes) -> tuple[bytes, np.ndarray]:
    """Returns a text without MARK with a mark for each of its idle parts, and where these begin and end,
    int64 [2, N]: from the first letter of a word to a blank."""
    library = compiled.library()
    if library is None:
        bounds = _idle_parts(text)
        return _MARK.join(_parts(text, np.append(0, bounds[1]), np.append(bounds[0], len(text)))), bounds
    kept, found = np.empty(len(text), np.uint8), np.empty((2, len(text) // _LEAST_BYTES + 1), np.int64)
    arrays = (_SIZES, kept, *found)
    count = library.take_out(
        text, len(text), _MARK, len(_MARK), _CLASSES, *(array.ctypes.data for array in arrays)
    )
    bounds = found[:, :count].copy()
    return kept[: len(text) - _num_bytes(bounds) + count * len(_MARK)].tobytes(), bounds


def put_back(kept: bytes, text: bytes, bounds: np.ndarray) -> bytes:
    """Returns a text with the parts of another one, which begin and end at `bounds`, in the places of its
    marks, of which there are as many."""
    library, count = compiled.library(), bounds.shape[1]
    if library is None:
        pieces = [b""] * (2 * count + 1)
        pieces[::2] = kept.split(_MARK)
        pieces[1::2] = _parts(text, *bounds)
        return b"".join(pieces)
    out = np.empty(len(kept) - count * len(_MARK) + _num_bytes(bounds), np.uint8)
    arrays = [array.ctypes.data for array in (*bounds, out)]
    size = library.put_back(kept, len(kept), _MARK, len(_MARK), text, count, *arrays)
    if size != len(out):
        raise ValueError(f"a text has other marks than one for each of {count} parts")
    return out.tobytes()


def _num_bytes(bounds: np.ndarray) -> int:
    return int((bounds[1] - bounds[0]).sum())


def _parts(data: bytes, firsts: np.ndarray, ends: np.ndarray) -> Iterator[bytes]:
    return map(data.__getitem__, map(slice, firsts.tolist(), ends.tolist()))


def _idle_parts(text: bytes) -> np.ndarray:
    classes = text.translate(_CLASSES)
    classes = classes.replace(_PUNCTUATION * _MOST_PUNCTUATION, _END_OR_OTHER * _MOST_PUNCTUATION)
    is_end = np.frombuffer(classes, np.uint8) == ord(_END_OR_OTHER)
    ends = np.concatenate([[-1], np.flatnonzero(is_end), [len(text)]])
    gaps = np.flatnonzero(np.diff(ends) > _BEHIND_BYTES + _BEFORE_BYTES + _LEAST_BYTES)
    behind, before = ends[gaps] + _BEHIND_BYTES, ends[gaps + 1] - _BEFORE_BYTES
    is_blank_behind, is_blank_before = (
        ragged.windows(text, starts, _MOST_WORD_BYTES) == ord(" ")
        for starts in (behind, before - _MOST_WORD_BYTES)
    )
    firsts = behind + is_blank_behind.argmax(axis=1) + 1
    lasts = before - 1 - is_blank_before[:, ::-1].argmax(axis=1)
    is_idle = (lasts - firsts >= _LEAST_BYTES) & is_blank_behind.any(axis=1) & is_blank_before.any(axis=1)
    return np.stack([firsts[is_idle], lasts[is_idle]])
