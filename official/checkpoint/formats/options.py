"""What a conversion can be asked for. A format uses what concerns it."""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Options:
    """Settings of a conversion.

    Attributes:
      vocab_size: words of the target; None: as many as the source has.
      with_optimizer: carry optimizer slots where both formats have them.
      precision: 16 or 32, the float type of the target; None: as it is.
      num_embeddings_splits: graphcore: parts of the word embeddings.
      use_cls_layer: graphcore: keep the transform of the masked-LM head.
      use_qkv_bias, use_attention_bias: graphcore: keep the biases of query, key and value, and of the
        attention's projection.
      fused_qkv: graphcore: one kernel [H, 3H] for query, key and value.
      num_attention_heads: garden: splits the attention kernels; None: hidden size / 64, or as a config file
        says.
      baseline: research: BERT and not GroupBERT.
      hidden_act: the model's activation, by its name in config.model.ACTIVATIONS; None: as a config file
        says, else the usual one of the source's format. The config file beside the result says it.
      layer_norm_eps: epsilon of LayerNorm, in the same way; None: as a config file says, else 1e-12.
      hf_prefix: huggingface: names begin with `bert.`, as in models with heads.
      vocab_file: vocabulary that is put beside the result: vocab.txt, tokenizer.json, or a folder with one of
        them.
      do_lower_case: whether its text is lower-cased; None: as the vocabulary's files say, else as its words
        look.
      labels: names of a classifier's classes, in their order; None: not known.
      problem_type: of a classifier, in Hugging Face's words: regression, single_label_classification; None:
        not known.
    """

    vocab_size: int | None = None
    with_optimizer: bool = False
    precision: int | None = None
    num_embeddings_splits: int = 1
    use_cls_layer: bool = True
    use_qkv_bias: bool = True
    use_attention_bias: bool = True
    fused_qkv: bool = False
    num_attention_heads: int | None = None
    baseline: bool = False
    hidden_act: str | None = None
    layer_norm_eps: float | None = None
    hf_prefix: bool | None = None
    vocab_file: str | None = None
    do_lower_case: bool | None = None
    labels: tuple[str, ...] | None = None
    problem_type: str | None = None
