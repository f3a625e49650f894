"""What a checkpoint must have: the whole encoder, whole heads, the right shapes; every phrase in one list."""

import pathlib

import numpy as np
import yaml

from official.checkpoint import canonical, registry
from official.checkpoint.formats import Options, google
from tests.checkpoint.tensors import HEADS, each_layer, of_arrays, shapes_of, zeros

WORDS, BIAS = "bert/embeddings/word_embeddings", canonical.OUTPUT_BIAS


def problems_of(heads=HEADS, drop=(), changed=None, encoder=canonical.ENCODER) -> dict[str, list[str]]:
    """Returns what is wrong with an encoder of two layers and heads, but for names dropped, with other shapes
    where `changed` has them."""
    shapes = shapes_of((*encoder, *heads)) | (changed or {})
    return canonical.encoder_problems({name: shapes[name] for name in shapes if name not in drop})


def test_every_part_must_be_there_in_its_shape():
    wrong = []
    layers = [name.replace("{layer}", "1") for name in canonical.GROUPBERT]
    for encoder, names in (
        (canonical.ENCODER, [name for name in HEADS if name != BIAS]),
        (canonical.GROUPBERT, [name for name in layers if not name.startswith(canonical.EMBEDDINGS)]),
    ):
        for name in names:
            if problems_of(drop=[name], encoder=encoder) != {"missing": [name]}:
                wrong.append(f"{name} may be missing")
    for name, shape in shapes_of(HEADS).items():
        other = (*shape[:-1], shape[-1] + 1)
        found = problems_of(changed={name: other}).get("of another shape", [])
        if f"{name} {list(other)} for {list(shape)}" not in found:
            wrong.append(f"{name} may have another shape")
    for name in (one for one in each_layer((*canonical.ENCODER, *HEADS)) if "layer_1" not in one):
        rank = canonical.rank_of(name)
        for shape in ((), (5,), (2, 2), (1, 2, 3)):
            found = problems_of(changed={name: shape})
            phrase = [f"{name} {list(shape)} must have {rank}"]
            is_said = found.get("of another number of dimensions") == phrase
            if not (found.get("of another shape") if len(shape) == rank else is_said):
                wrong.append(f"{name} may be {shape}")
    assert not wrong


def test_all_problems_are_in_one_list():
    """Without layers or words, heads are looked at, too; a transform needs the bias, of each word a value."""
    problems = problems_of(encoder=canonical.EMBEDDINGS, drop=[WORDS, "output_bias"])
    assert problems == {"Missing": [WORDS], "No layer": [], "missing": ["output_bias"]}
    assert problems_of(canonical.TRANSFORM) == {"missing": [BIAS]}
    assert problems_of(changed={BIAS: (60,)}) == {"of another shape": [f"{BIAS} [60] for [48]"]}


def test_names_of_googles_slots():
    weight = "bert/pooler/dense/kernel"
    tensors = of_arrays({f"{weight}/lamb_m": np.full(2, 0.0), f"{weight}/lamb_v": np.full(2, 1.0)})
    mapped = google.to_canonical(tensors, Options())  # the other formats' names are read, too
    assert mapped.tensors == tensors and not mapped.unmatched and not mapped.dropped
    written = google.from_canonical(mapped.tensors, Options()).tensors
    assert written.keys() == {f"{weight}/LAMB", f"{weight}/LAMB_1"}
    both = tensors | {f"{weight}/LAMB": tensors[f"{weight}/lamb_m"]}
    assert google.to_canonical(both, Options()).unmatched == [f"{weight}/LAMB"]


def test_names_that_find_no_place_are_left_out_with_a_reason_or_are_errors():
    wrong, path = [], pathlib.Path(__file__).parent / "left_out.yml"
    for direction, formats in yaml.safe_load(path.read_text()).items():
        for name, reasons in formats.items():
            mapped = getattr(registry.get_format(name), direction)(zeros(*reasons), Options())
            told = mapped.dropped | dict.fromkeys(mapped.unmatched)
            for one, reason in reasons.items():
                if mapped.tensors or one not in told or (reason or "") not in (told[one] or ""):
                    wrong.append(f"{direction} of {name}: {one}: {told.get(one)}, expected {reason}")
    assert not wrong
