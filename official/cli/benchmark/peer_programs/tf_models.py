"""The TensorFlow Model Garden (tf-models-official): BertPretrainerV2 with a next-sentence head.

Its optimizer is AdamWeightDecay, which clips.
"""

import worker


def make_step(specification: dict):
    import tensorflow as tf

    if specification["dtype"] == "bf16":
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    tf.keras.utils.set_random_seed(specification["seed"])
    model = make_model(specification["model"])
    optimizer = make_optimizer(specification)
    batch = {name: tf.constant(value) for name, value in worker.examples(specification).items()}
    inputs = {
        "input_word_ids": batch["input_ids"],
        "input_mask": batch["input_mask"],
        "input_type_ids": batch["segment_ids"],
        "masked_lm_positions": batch["positions"],
    }

    def mean_loss(labels, logits):
        logits = tf.cast(logits, tf.float32)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))

    @tf.function
    def update():
        with tf.GradientTape() as tape:
            outputs = model(inputs, training=True)
            words = mean_loss(batch["labels"], outputs["mlm_logits"])
            loss = words + mean_loss(batch["next_sentence"], outputs["next_sentence"])
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
        return loss

    return lambda: update().numpy()


def make_model(sizes: dict):
    """Returns the pre-training model of the keys of a bert_config.json."""
    import tensorflow as tf

    from official.nlp.modeling import layers, models, networks

    gelu = lambda x: tf.keras.activations.gelu(x, approximate=True)
    initializer = lambda: tf.keras.initializers.TruncatedNormal(stddev=sizes["initializer_range"])
    encoder = networks.BertEncoderV2(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        num_layers=sizes["num_hidden_layers"],
        num_attention_heads=sizes["num_attention_heads"],
        max_sequence_length=sizes["max_position_embeddings"],
        type_vocab_size=sizes["type_vocab_size"],
        inner_dim=sizes["intermediate_size"],
        inner_activation=gelu,
        output_dropout=sizes["hidden_dropout_prob"],
        attention_dropout=sizes["attention_probs_dropout_prob"],
        initializer=initializer(),
    )
    head = layers.ClassificationHead(
        inner_dim=sizes["hidden_size"],
        num_classes=2,
        dropout_rate=sizes["hidden_dropout_prob"],
        name="next_sentence",
        initializer=initializer(),
    )
    return models.BertPretrainerV2(
        encoder, classification_heads=[head], mlm_activation=gelu, mlm_initializer=initializer()
    )


def make_optimizer(specification: dict):
    from official.modeling.optimization import legacy_adamw

    return legacy_adamw.AdamWeightDecay(
        learning_rate=specification["learning_rate"],
        weight_decay_rate=specification["weight_decay"],
        epsilon=specification["epsilon"],
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        gradient_clip_norm=specification["clip_norm"],
    )


if __name__ == "__main__":
    worker.serve(make_step)
