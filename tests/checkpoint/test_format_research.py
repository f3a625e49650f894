"""GroupBERT's research names: the published map name by name, and there and back bit by bit."""

import re

import numpy as np
import pytest

from official.checkpoint import canonical
from official.checkpoint.formats import Options, graphcore, research
from official.io.errors import ConfigError
from tests.checkpoint.tensors import (
    HEADS,
    H,
    assert_same,
    of_arrays,
    published,
    random_tensors,
    shapes,
    shapes_of,
    with_slots,
)
from tests.checkpoint.test_format_graphcore import CLASSIFIER, QKV_BIASES

RESEARCH = published("research")
APPS = shapes_of((*canonical.GROUPBERT, *canonical.PRETRAINING_HEADS))
GOOGLE = shapes_of((*canonical.ENCODER, *canonical.PRETRAINING_HEADS))
KEY_BIASES = {f"bert/encoder/layer_{number}/attention/self/key/bias" for number in (0, 1)}


def convert(source, target, tensors, **options):
    """Returns the tensors of a conversion, and what both halves of it dropped and added."""
    read = source.to_canonical(tensors, Options.of(**options))
    written = target.from_canonical(read.tensors, Options.of(**options))
    assert not read.unmatched and not written.unmatched
    return written.tensors, read.dropped | written.dropped, read.added | written.added


def test_the_published_maps():
    tensors = random_tensors(RESEARCH)
    apps, dropped, added = convert(research, graphcore, tensors)
    assert shapes(apps) == APPS and set(added) == KEY_BIASES and not dropped
    assert not any(apps[name].read().any() for name in KEY_BIASES)
    written, dropped, added = convert(graphcore, research, random_tensors(APPS), num_embeddings_splits=2)
    assert shapes(written) == RESEARCH and set(dropped) == KEY_BIASES and not added
    for splits in (1, 2, 12):
        apps, _, _ = convert(research, graphcore, tensors, num_embeddings_splits=splits)
        back, _, _ = convert(graphcore, research, apps, num_embeddings_splits=2)
        assert_same(back, tensors)


def test_halves_and_thirds_are_in_order():
    layer = "all/bert/encoder/layer_1"
    joined = {
        f"{layer}/conv/pre/weight": np.repeat([[0, 1]], H, axis=1),
        f"{layer}/conv/pre/bias": np.repeat([0, 1], H),
        f"{layer}/attention/qkv/weight": np.repeat([[0, 1, 2]], H, axis=1),
    }
    apps, _, _ = convert(research, graphcore, of_arrays(joined))
    layer = "bert/encoder/layer_1"
    for value, part in enumerate(("values", "gates")):
        for name in ("kernel", "bias"):
            assert (apps[f"{layer}/convolution/pre/glu/{part}/dense/{name}"].read() == value).all()
    for value, part in enumerate(("query", "key", "value")):
        assert (apps[f"{layer}/attention/self/{part}/kernel"].read() == value).all()


def test_names_without_the_scope_are_read_too():
    tensors = random_tensors(RESEARCH)
    bare = {name.removeprefix("all/"): tensor for name, tensor in tensors.items()}
    assert_same(convert(research, graphcore, bare)[0], convert(research, graphcore, tensors)[0])
    with pytest.raises(ConfigError, match="with and without all/.*bert/pooler/dense/bias"):
        research.to_canonical(tensors | {"bert/pooler/dense/bias": bare["bert/pooler/dense/bias"]}, Options())


def test_state_is_not_written():
    counts = of_arrays({"global_step": np.int64(7), "samples": np.int64(56)})
    tensors = random_tensors(with_slots(APPS, "lamb_m", "lamb_v")) | counts
    written = research.from_canonical(tensors, Options.of(num_embeddings_splits=2))
    assert not written.unmatched and shapes(written.tensors) == RESEARCH
    assert set(written.dropped) == set(tensors) - set(APPS) | KEY_BIASES


def test_the_baseline():
    tensors = random_tensors(GOOGLE)
    written = research.from_canonical(tensors, Options.of(baseline=True)).tensors
    layers = {name: shape for name, shape in shapes(written).items() if "/layer_" in name}
    assert layers == published("research_baseline")
    mapped = research.to_canonical(written, Options())  # it is told by its names
    assert_same(mapped.tensors, tensors)
    assert not mapped.unmatched
    # Files of the published reader, without key biases, become Graphcore's names with the biases apart.
    without_bias = {name: one for name, one in written.items() if not name.endswith("key/bias")}
    apps, _, added = convert(research, graphcore, without_bias, baseline=True)
    whole = {name for name in published("graphcore") if not name.endswith("qkv_bias")}
    assert set(added) == KEY_BIASES and apps.keys() == whole | QKV_BIASES
    tensors = random_tensors(shapes_of((*canonical.ENCODER, *HEADS)))
    written = research.from_canonical(tensors, Options.of(baseline=True, num_embeddings_splits=12))
    back = research.to_canonical(written.tensors, Options.of(baseline=True))
    assert_same(back.tensors, tensors)
    assert not written.dropped and not back.added


def test_baseline_must_be_what_the_model_is():
    for convert_one, names, baseline, advice in (
        (research.from_canonical, GOOGLE, False, "Add --baseline"),
        (research.from_canonical, APPS, True, "Drop --baseline"),
        (research.to_canonical, RESEARCH, True, "Drop --baseline"),
    ):
        with pytest.raises(ConfigError, match=advice):
            convert_one(random_tensors(names), Options.of(baseline=baseline))
    plain, other = "all/bert/encoder/layer_0/boom/up/bias", "all/bert/encoder/layer_0/conv/post/bias"
    mixed = random_tensors({plain: (H,), other: (H,)})
    assert research.to_canonical(mixed, Options()).unmatched == [plain]


def test_heads_of_fine_tuned_models():
    heads = CLASSIFIER | {"cls/squad/output_weights": (2, H), "cls/squad/output_bias": (2,)}
    tensors = random_tensors({f"all/{name}": shape for name, shape in heads.items()})
    apps, _, _ = convert(research, graphcore, tensors)
    assert set(apps) == {*heads, *canonical.POOLER}
    back, _, added = convert(graphcore, research, apps)
    assert_same({name: back[name] for name in tensors}, tensors)
    assert set(added) == {"all/glue_loss/pooler/dense/kernel", "all/glue_loss/pooler/dense/bias"}


def test_options_drop_what_they_say():
    options = Options.of(use_cls_layer=False, use_attention_bias=False)
    dropped = research.from_canonical(random_tensors(APPS), options).dropped
    biases = [f"bert/encoder/layer_{layer}/attention/projection/dense/bias" for layer in (0, 1)]
    assert {name: reason for name, reason in dropped.items() if name not in KEY_BIASES} == {
        **dict.fromkeys(canonical.TRANSFORM, "use_cls_layer is off"),
        **dict.fromkeys(biases, "use_attention_bias is off"),
    }
    assert re.fullmatch(research.FORMAT.float32_names, "all/cls/predictions/output_bias")
    assert not re.fullmatch(research.FORMAT.float32_names, "all/bert/pooler/dense/bias")
