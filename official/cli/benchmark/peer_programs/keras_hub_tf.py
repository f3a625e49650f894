"""keras-hub on TensorFlow: BertBackbone, MaskedLMHead and a next-sentence head, AdamW, train_on_batch."""

import os

import worker

os.environ["KERAS_BACKEND"] = "tensorflow"


def make_step(specification: dict):
    import keras

    if specification["dtype"] == "bf16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    keras.utils.set_random_seed(specification["seed"])
    model = make_model(specification["model"], specification["predictions"])
    optimizer = keras.optimizers.AdamW(
        specification["learning_rate"],
        weight_decay=specification["weight_decay"],
        epsilon=specification["epsilon"],
        global_clipnorm=specification["clip_norm"],
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "layer_norm", "gamma", "beta"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss={"masked_lm": loss, "next_sentence": loss}, jit_compile=False)
    batch = worker.examples(specification)
    inputs = {
        "token_ids": batch["input_ids"],
        "padding_mask": batch["input_mask"],
        "segment_ids": batch["segment_ids"],
        "mask_positions": batch["positions"],
    }
    labels = {"masked_lm": batch["labels"], "next_sentence": batch["next_sentence"]}

    def step():
        value = model.train_on_batch(inputs, labels)
        return value[0] if isinstance(value, (list, tuple)) else value

    return step


def make_model(sizes: dict, predictions: int):
    """Returns the pre-training model from the keys of a bert_config.json, for a number of masked words."""
    import keras
    import keras_hub

    backbone = keras_hub.models.BertBackbone(
        vocabulary_size=sizes["vocab_size"],
        num_layers=sizes["num_hidden_layers"],
        num_heads=sizes["num_attention_heads"],
        hidden_dim=sizes["hidden_size"],
        intermediate_dim=sizes["intermediate_size"],
        dropout=sizes["hidden_dropout_prob"],
        max_sequence_length=sizes["max_position_embeddings"],
        num_segments=sizes["type_vocab_size"],
    )
    positions = keras.Input((predictions,), dtype="int32", name="mask_positions")
    encoded = backbone(backbone.input)
    words = keras_hub.layers.MaskedLMHead(
        vocabulary_size=sizes["vocab_size"],
        token_embedding=backbone.token_embedding,
        intermediate_activation="gelu",
        dtype=keras.config.dtype_policy(),
        name="masked_lm",
    )(encoded["sequence_output"], mask_positions=positions)
    relation = keras.layers.Dense(2, name="next_sentence")(encoded["pooled_output"])
    return keras.Model(
        {**backbone.input, "mask_positions": positions}, {"masked_lm": words, "next_sentence": relation}
    )


if __name__ == "__main__":
    worker.serve(make_step)
