"""Signatures of a model: the inputs and outputs of each method, in exports and on the server.

A call takes N rows; the shapes here are those of one row.
"""

from typing import NamedTuple


class Field(NamedTuple):
    """An input or an output.

    Attributes:
      name: name of the input or output.
      dtype: string, int32 or float32.
      shape: shape of one of N; None for sizes that depend on the call.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] = ()


class Signature(NamedTuple):
    """Signature of an export or of the server: the inputs and outputs of a method.

    Attributes:
      method: name of the method of `Model`.
      inputs, outputs: fields, in order.
      optional: names of inputs that may be left out; they default to ''.
    """

    method: str
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    optional: tuple[str, ...] = ()


TOP_WORDS = 5  # most probable word pieces of each [MASK]

# By name. `classify` gives the most probable label, and the names of all outputs with the probability or
# score of each; if outputs are scores, its label is '' and its score the first one. In `fill_mask` a text
# with fewer masks than another one of the call is padded with '' and 0. The text of an answer is '' for no
# answer.
_SCORE, _SCORES = Field("score", "float32"), Field("scores", "float32", (None,))
_TEXT, _OF_MASKS = Field("text", "string"), (None, TOP_WORDS)
SIGNATURES = {
    "answer": Signature(
        "answer",
        (Field("question", "string"), Field("context", "string")),
        (_TEXT, Field("start", "int32"), Field("end", "int32"), _SCORE),
    ),
    "classify": Signature(
        "classify",
        (Field("sentence_a", "string"), Field("sentence_b", "string")),
        (Field("label", "string"), _SCORE, Field("labels", "string", (None,)), _SCORES),
        ("sentence_b",),
    ),
    # A text with fewer entities than another one of the call is padded with '' and 0.
    "tag": Signature(
        "tag",
        (_TEXT,),
        (
            Field("types", "string", (None,)),
            Field("entities", "string", (None,)),
            Field("starts", "int32", (None,)),
            Field("ends", "int32", (None,)),
            _SCORES,
        ),
    ),
    "fill_mask": Signature(
        "fill_mask",
        (_TEXT,),
        (Field("tokens", "string", _OF_MASKS), _SCORES._replace(shape=_OF_MASKS)),
    ),
    "embed": Signature("embed", (_TEXT,), (Field("embedding", "float32", (None,)),)),
}

# Token ids of an external tokenizer: the outputs are those of the model's head.
TENSORS = "tensors"
TENSOR_INPUTS = tuple(Field(name, "int32", (None,)) for name in ("input_ids", "input_mask", "segment_ids"))
TENSOR_OUTPUTS = {
    "answer": (Field("start_logits", "float32", (None,)), Field("end_logits", "float32", (None,))),
    "classify": (Field("logits", "float32", (None,)),),
    "tag": (Field("logits", "float32", (None, None)),),
    "fill_mask": (Field("logits", "float32", (None, None)),),
    "embed": (Field("sequence", "float32", (None, None)),),
}


def main_method(abilities: list[str]) -> str:
    """Returns the default method of a model: the first of SIGNATURES that is among `abilities`."""
    return next(name for name in SIGNATURES if name in abilities)


def output_names(head: str) -> tuple[str, ...]:
    """Returns the names of the outputs of a method's head for token ids."""
    return tuple(field.name for field in TENSOR_OUTPUTS[head])
