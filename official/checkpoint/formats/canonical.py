"""The names that stand between two formats: Google's TF1 names, which are this project's variable names too."""

EMBEDDINGS = (
    "bert/embeddings/word_embeddings", "bert/embeddings/token_type_embeddings", "bert/embeddings/position_embeddings",
    "bert/embeddings/LayerNorm/gamma", "bert/embeddings/LayerNorm/beta",
)
LAYER = tuple(f"bert/encoder/layer_{{layer}}/{name}" for name in (
    "attention/self/query/kernel", "attention/self/query/bias", "attention/self/key/kernel", "attention/self/key/bias",
    "attention/self/value/kernel", "attention/self/value/bias", "attention/output/dense/kernel", "attention/output/dense/bias",
    "attention/output/LayerNorm/gamma", "attention/output/LayerNorm/beta", "intermediate/dense/kernel", "intermediate/dense/bias",
    "output/dense/kernel", "output/dense/bias", "output/LayerNorm/gamma", "output/LayerNorm/beta",
))
POOLER = ("bert/pooler/dense/kernel", "bert/pooler/dense/bias")
PRETRAINING_HEADS = (
    "cls/predictions/transform/dense/kernel", "cls/predictions/transform/dense/bias", "cls/predictions/transform/LayerNorm/gamma",
    "cls/predictions/transform/LayerNorm/beta", "cls/predictions/output_bias", "cls/seq_relationship/output_weights",
    "cls/seq_relationship/output_bias",
)
SQUAD_HEAD = ("cls/squad/output_weights", "cls/squad/output_bias")  # [2, H], [2]
CLASSIFIER_HEAD = ("output_weights", "output_bias")  # [C, H], [C]

ENCODER = (*EMBEDDINGS, *LAYER, *POOLER)
WEIGHTS = (*ENCODER, *PRETRAINING_HEADS, *SQUAD_HEAD, *CLASSIFIER_HEAD)

SLOTS = ("adam_m", "adam_v", "lamb_m", "lamb_v")  # of a weight NAME: NAME/adam_m, in the shape of the weight
COUNTERS = ("global_step", "samples", "loss_scale/scale", "loss_scale/good_steps")

# Tensors with one row or value per word: cut and filled up together.
VOCABULARY = ("bert/embeddings/word_embeddings", "cls/predictions/output_bias")

# GroupBERT. Google has no names for it; these are Graphcore's. Kernels [in, out]; dwconv/weight [kernel size, group size, H].
GROUPBERT_LAYER = tuple(f"bert/encoder/layer_{{layer}}/{name}" for name in (
    "convolution/prenorm/LayerNorm/gamma", "convolution/prenorm/LayerNorm/beta",
    "convolution/pre/glu/values/dense/kernel", "convolution/pre/glu/values/dense/bias",
    "convolution/pre/glu/gates/dense/kernel", "convolution/pre/glu/gates/dense/bias",
    "convolution/dwconv/weight", "convolution/dwconv/LayerNorm/gamma", "convolution/dwconv/LayerNorm/beta",
    "convolution/post/dense/kernel", "convolution/post/dense/bias",
    "feed_forward_1/prenorm/LayerNorm/gamma", "feed_forward_1/prenorm/LayerNorm/beta",
    "feed_forward_1/intermediate/dense/kernel", "feed_forward_1/intermediate/dense/bias",
    "feed_forward_1/output/dense/kernel", "feed_forward_1/output/dense/bias",
    "feed_forward_1/output/mixer/dense/kernel", "feed_forward_1/output/mixer/dense/bias",
    "attention/prenorm/LayerNorm/gamma", "attention/prenorm/LayerNorm/beta",
    "attention/self/query/kernel", "attention/self/query/bias", "attention/self/key/kernel", "attention/self/key/bias",
    "attention/self/value/kernel", "attention/self/value/bias", "attention/projection/dense/kernel", "attention/projection/dense/bias",
    "feed_forward_2/prenorm/LayerNorm/gamma", "feed_forward_2/prenorm/LayerNorm/beta",
    "feed_forward_2/intermediate/dense/kernel", "feed_forward_2/intermediate/dense/bias",
    "feed_forward_2/output/dense/kernel", "feed_forward_2/output/dense/bias",
    "feed_forward_2/output/mixer/dense/kernel", "feed_forward_2/output/mixer/dense/bias",
))
GROUPBERT = (*EMBEDDINGS, *GROUPBERT_LAYER, "LayerNorm/gamma", "LayerNorm/beta", *POOLER)  # its encoder
