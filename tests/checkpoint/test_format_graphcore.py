"""Graphcore's names: every form there and back bit by bit, and the published layout name by name."""

import itertools

import ml_dtypes
import numpy as np
import pytest

from official.checkpoint import canonical
from official.checkpoint import tensors as tensors_lib
from official.checkpoint.containers import bundle
from official.checkpoint.formats import Options, google, graphcore
from official.io.errors import ConfigError
from tests.checkpoint.tensors import (
    HEADS,
    H,
    V,
    assert_same,
    each_layer,
    of_arrays,
    published,
    random_tensors,
    shapes,
    shapes_of,
    with_slots,
)

LAMB = ("lamb_m", "lamb_v")
SELF = "bert/encoder/layer_{}/attention/self".format
GOOGLE = shapes_of((*canonical.ENCODER, *canonical.PRETRAINING_HEADS))
ALL_HEADS = shapes_of((*canonical.ENCODER, *HEADS))
QKV_BIASES = {f"{SELF(layer)}/{part}/bias" for layer in (0, 1) for part in ("query", "key", "value")}
PROJECTION_BIASES = {f"bert/encoder/layer_{layer}/attention/output/dense/bias" for layer in (0, 1)}
TRANSFORM = set(canonical.TRANSFORM)
TABLE = "bert/embeddings/word_embeddings"


def to_graphcore(tensors, **options):
    mapped = graphcore.from_canonical(tensors, Options.of(**options))
    assert not mapped.unmatched
    return mapped


def to_canonical(tensors):
    mapped = graphcore.to_canonical(tensors, Options())
    assert not mapped.unmatched
    return mapped


def test_there_and_back_is_exact(tmp_path):
    slots = ((), LAMB, ("adam_m", "adam_v"))
    cases = itertools.product((1, 2, 4, 12), (False, True), (False, True), slots)
    for splits, fused, baseline, kinds in cases:
        tensors = random_tensors(with_slots(ALL_HEADS, *kinds)) | of_arrays({"global_step": np.int64(7)})
        written = to_graphcore(tensors, num_embeddings_splits=splits, fused_qkv=fused, baseline=baseline)
        back = to_canonical(written.tensors)
        assert_same(back.tensors, tensors)
        assert not written.dropped and not back.added, (splits, fused, baseline, kinds)
    bundle.write(written.tensors, str(tmp_path / "model"))
    assert_same(to_canonical(bundle.read(str(tmp_path / "model"))).tensors, tensors)


PUBLISHED = published("graphcore")


def test_the_published_layout():
    written = to_graphcore(google.to_canonical(random_tensors(GOOGLE), Options()).tensors)
    assert shapes(written.tensors) == PUBLISHED and not written.dropped and not written.added
    # The published converter's own default: no transform, embeddings in two.
    written = to_graphcore(random_tensors(GOOGLE), use_cls_layer=False, num_embeddings_splits=2)
    blocks = dict.fromkeys((f"bert/embeddings/s{number}/word_embeddings" for number in (0, 1)), (V // 2, H))
    kept = {name: shape for name, shape in PUBLISHED.items() if name not in TRANSFORM | {TABLE}}
    assert shapes(written.tensors) == kept | blocks
    assert written.dropped == dict.fromkeys(TRANSFORM, "use_cls_layer is off")


def test_query_key_value_in_this_order():
    parts = {
        f"{SELF(1)}/{part}/{name}": np.full(shape, value, np.float32)
        for value, part in enumerate(("query", "key", "value"))
        for name, shape in (("kernel", (H, H)), ("bias", (H,)))
    }
    written = to_graphcore(of_arrays(parts), fused_qkv=True).tensors
    assert set(written) == {f"{SELF(1)}/kernel/qkv_weight", f"{SELF(1)}/qkv_bias"}
    kernel, bias = (written[name].read() for name in sorted(written))
    assert kernel.shape == (H, 3 * H) and (kernel == np.repeat([0, 1, 2], H)[None]).all()
    assert (bias == np.repeat([0, 1, 2], H)).all()


def test_blocks_of_embeddings_are_in_the_order_of_numbers():
    table = np.arange(24 * H, dtype=np.float32).reshape(24, H)
    both = of_arrays({TABLE: table, f"{TABLE}/lamb_m": table})
    written = to_graphcore(both, num_embeddings_splits=12).tensors
    blocks = [f"bert/embeddings/s{index}/word_embeddings" for index in range(12)]
    assert set(written) == {*blocks, *(f"{name}/lamb_m" for name in blocks)}
    assert (written[f"{blocks[10]}/lamb_m"].read() == table[20:22]).all()
    by_name = dict(sorted(written.items()))  # s0, s1, s10, s11, s2, ...
    assert_same(to_canonical(by_name).tensors, both)


def test_damaged_forms_and_splits_that_do_not_divide_are_said():
    for splits, message in (
        (5, "--num_embeddings_splits=5 does not divide .* 48 words. .*--vocab_size: 45 or 50"),
        (100, "--vocab_size: 100"),
        (0, "--num_embeddings_splits=0 must be at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            to_graphcore(random_tensors(GOOGLE), num_embeddings_splits=splits)
    blocks = "bert/embeddings/s{}/word_embeddings".format
    no_third = "its last dimension must be a multiple of 3"
    for sizes, message in (
        ({blocks(index): (4, H) for index in (0, 2, 4)}, "missing: s1, s3"),
        ({blocks(0): (4, H), blocks(1): (4, H + 1)}, "the widths are different"),
        ({blocks(0): (4, H), blocks(1): ()}, "not rows: s1"),
        ({blocks(0): (4, H), blocks(1): (4,)}, "not rows: s1"),
        ({f"{SELF(0)}/qkv_bias": (3 * H + 1,)}, no_third),
        ({f"{SELF(0)}/qkv_bias": ()}, rf"has the shape \[\]: {no_third}"),
        ({f"{SELF(0)}/kernel/qkv_weight": ()}, no_third),
    ):
        with pytest.raises(ConfigError, match=message):
            to_canonical(random_tensors(sizes))


def test_the_same_weight_in_two_forms():
    for whole, part in (
        (f"{SELF(0)}/kernel/qkv_weight", f"{SELF(0)}/key/kernel"),
        (TABLE, "bert/embeddings/s0/word_embeddings"),
    ):
        mapped = graphcore.to_canonical(random_tensors({whole: (3, 3), part: (3, 1)}), Options())
        assert len(mapped.unmatched) == 1 and set(mapped.unmatched) <= {whole, part}
    fused, apart = f"{SELF(0)}/qkv_bias", {name: (H,) for name in QKV_BIASES if "layer_0" in name}
    tensors = random_tensors({fused: (3 * H,), **apart})
    mapped = to_canonical(tensors)  # those that the model reads count
    assert list(mapped.dropped) == [fused]
    assert_same(mapped.tensors, {name: tensors[name] for name in apart})


def test_options_drop_what_they_say():
    tensors = random_tensors(with_slots(ALL_HEADS, *LAMB))
    for option, names in (
        ("use_qkv_bias", QKV_BIASES),
        ("use_attention_bias", PROJECTION_BIASES),
        ("use_cls_layer", TRANSFORM),
    ):
        for fused in (False, True):
            written = to_graphcore(tensors, fused_qkv=fused, **{option: False})
            gone = with_slots(dict.fromkeys(names), *LAMB)
            assert written.dropped == dict.fromkeys(gone, f"{option} is off")
            back = to_canonical(written.tensors).tensors
            kept = {name: tensor for name, tensor in tensors.items() if name not in gone}
            assert_same({name: back[name] for name in kept}, kept)


def test_absent_biases_are_zeros_and_an_absent_transform_is_absent():
    """The shipped BERT models have no biases in the attention and no transform."""
    off = dict.fromkeys(("use_qkv_bias", "use_attention_bias", "use_cls_layer"), False)
    back = to_canonical(to_graphcore(random_tensors(GOOGLE), **off, fused_qkv=True).tensors)
    assert set(back.added) == QKV_BIASES | PROJECTION_BIASES
    assert set(back.tensors) == set(GOOGLE) - TRANSFORM
    zeros = {name: np.zeros(H, np.float32) for name in back.added}
    assert_same({name: back.tensors[name] for name in zeros}, zeros)
    kernel = {"bert/encoder/layer_0/attention/projection/dense/kernel": np.ones((H, H), np.float16)}
    back = to_canonical(of_arrays(kernel)).tensors
    assert back["bert/encoder/layer_0/attention/output/dense/bias"].read().dtype == np.float16


CLASSIFIER = {"glue_loss/output_weights": (3, H), "glue_loss/output_bias": (3,)}
CLASSIFIER |= {"glue_loss/pooler/dense/kernel": (H, H), "glue_loss/pooler/dense/bias": (H,)}


def test_the_classifier_has_a_pooler_of_its_own():
    tensors = random_tensors(ALL_HEADS)
    written = to_graphcore(tensors)
    assert set(CLASSIFIER) <= set(written.tensors) and "output_weights" not in written.tensors
    for name in ("pooler/dense/kernel", "pooler/dense/bias"):
        for scope in ("glue_loss", "bert"):
            assert (written.tensors[f"{scope}/{name}"].read() == tensors[f"bert/{name}"].read()).all()
    assert set(written.added) == {"glue_loss/pooler/dense/kernel", "glue_loss/pooler/dense/bias"}
    pooler = {"bert/pooler/dense/kernel": (H, H), "bert/pooler/dense/bias": (H,)}
    for unused in ({}, pooler):
        mapped = to_canonical(random_tensors(CLASSIFIER | unused))
        assert mapped.tensors.keys() == {"output_weights", "output_bias", *pooler}
        assert mapped.tensors["bert/pooler/dense/kernel"].sources == ("glue_loss/pooler/dense/kernel",)
        assert mapped.dropped == dict.fromkeys(unused, "the classifier uses glue_loss/pooler")


def test_step_counters_come_with_slots():
    weight = f"{SELF(0)}/kernel/qkv_weight"
    kernels = {f"{SELF(0)}/{part}/kernel": (H, H) for part in ("query", "key", "value")}
    counts = of_arrays({"global_step": np.int64(7), "samples": np.int64(56)})
    written = to_graphcore(random_tensors(with_slots(kernels, *LAMB)) | counts, fused_qkv=True)
    slots = {f"{weight}/{name}" for name in ("lamb_m", "lamb_v", "lamb_step_counter")}
    assert set(written.tensors) == {weight, *slots, "global_step"}
    numbers = {f"{weight}/lamb_step_counter": np.array([8], np.int32), "global_step": np.array(7)}
    assert_same({name: written.tensors[name] for name in numbers}, numbers)
    assert list(written.dropped) == ["samples"]


def test_groupbert_has_the_same_names():
    tensors = random_tensors(with_slots(dict.fromkeys(each_layer(canonical.GROUPBERT), (12, 12)), *LAMB))
    assert len(canonical.GROUPBERT_LAYER) == len(set(canonical.GROUPBERT_LAYER)) == 37
    assert_same(to_graphcore(tensors).tensors, tensors)
    for fused in (False, True):
        written = to_graphcore(tensors, fused_qkv=fused, num_embeddings_splits=3)
        assert_same(to_canonical(written.tensors).tensors, tensors)
        assert f"{SELF(0)}/query/bias" in written.tensors
    name = "bert/encoder/layer_0/convolution/dwconv/weight"  # which Google's have no place for
    assert google.from_canonical(random_tensors({name: (2, 2)}), Options()).unmatched == [name]


def published_file(words, step) -> dict:
    """A file of the published converter: words cut, the output bias as long as it was, the step cast with the
    weights."""
    written = to_graphcore(random_tensors(with_slots(GOOGLE, *LAMB))).tensors
    cut = with_slots({TABLE: ()}, *LAMB)
    written |= {name: tensors_lib.with_rows(written[name], words) for name in cut}
    return written | of_arrays({"global_step": step})


def test_the_published_converters_output_bias_is_cut_to_the_words():
    source = published_file(40, np.int64(7))
    mapped = to_canonical(source)
    assert not canonical.encoder_problems(shapes(mapped.tensors)) and not mapped.added
    for name in with_slots({canonical.OUTPUT_BIAS: ()}, *LAMB):
        assert mapped.tensors[name].shape == (40,) and mapped.tensors[name].sources == (name,)
        assert (mapped.tensors[name].read() == source[name].read()[:40]).all()
        assert "the published converter cuts the word embeddings alone" in mapped.dropped[f"{name}[40:]"]
    # One that is too short is no published file.
    mapped = to_canonical(random_tensors(PUBLISHED | {TABLE: (V + 8, H)}))
    assert mapped.tensors[canonical.OUTPUT_BIAS].shape == (V,) and not mapped.dropped
    assert canonical.encoder_problems(shapes(mapped.tensors))


def test_a_float_step_is_an_integer_again_or_lost():
    for dtype, exact in ((np.float16, 2048), (np.float32, 2**24), (ml_dtypes.bfloat16, 256)):
        mapped = to_canonical(published_file(V, np.asarray(1800, dtype)))
        step = np.asarray(np.asarray(1800, dtype).astype(np.int64))
        assert_same({"": mapped.tensors["global_step"]}, {"": step})
        said = f"was {np.dtype(dtype).name}, which rounds above {exact}; made an integer again"
        assert mapped.added == {"global_step": said}
    for value in (np.inf, np.nan, -np.inf):
        mapped = to_canonical(published_file(V, np.float16(value)))
        assert "global_step" not in mapped.tensors and not mapped.added
        assert mapped.dropped["global_step"] == "float16 could not hold it"
