"""Training steps of the measured systems, built from a specification, and run on request.

Protocol: one JSON object per line, over standard input and output. First the input is the specification, and
the output {"start_secs", "losses"} after the first step. Then for each input {"steps": N} the output is
{"losses", "peak_bytes"}, until the input ends; only the last step waits for the device. A step runs in the
environment of its system: only this project's step imports this project.

The specification: step (a key of STEPS), variant (the system's own), model (keys of a bert_config.json),
dtype (fp32, bf16 or fp16), length, batch, predictions (masked tokens of a sequence), threads, num_gpus (0 or
1), optimizer_type (adamw or lamb), learning_rate, weight_decay, epsilon, clip_norm and seed.
"""

import json
import os
import sys
import time
from collections.abc import Callable


def main() -> None:
    """Serves steps until the input ends."""
    answers = take_output()
    specification = json.loads(sys.stdin.readline())
    started = time.perf_counter()
    run, peak_bytes = STEPS[specification["step"]](specification)
    first = run(1)
    say(answers, start_secs=time.perf_counter() - started, losses=first)
    for line in sys.stdin:
        say(answers, losses=run(json.loads(line)["steps"]), peak_bytes=peak_bytes())


def take_output():
    """Returns the standard output, for answers only; redirects prints of libraries to standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


def say(answers, **values) -> None:
    """Writes an answer: a line of JSON."""
    answers.write(json.dumps(values) + "\n")
    answers.flush()


# (number of steps -> losses, () -> most bytes of the device in use at once, None where it is the CPU)
Step = tuple[Callable[[int], list[float]], Callable[[], "int | None"]]


def one_by_one(step: Callable) -> Step:
    """Returns a function for several steps from a function for one step that returns its loss."""
    return lambda count: [float(loss) for loss in [step() for _ in range(count)]], lambda: None


def examples(specification: dict) -> dict:
    """Returns one batch of NumPy arrays, the same for every system: full-length random sequences of two
    segments.

    input_ids, input_mask, segment_ids: int32 [batch, length]; positions, labels: int32 [batch, predictions];
      next_sentence: int32 [batch].
    """
    import numpy as np

    batch, length, predictions = (specification[name] for name in ("batch", "length", "predictions"))
    generator = np.random.default_rng(specification["seed"])
    ids = generator.integers(0, specification["model"]["vocab_size"], (batch, length), dtype=np.int32)
    positions = np.sort(
        np.stack([generator.permutation(length)[:predictions] for _ in range(batch)]), axis=1
    ).astype(np.int32)
    return {
        "input_ids": ids,
        "input_mask": np.ones_like(ids),
        "segment_ids": (np.arange(length) >= length // 2).astype(np.int32) * np.ones_like(ids),
        "positions": positions,
        "labels": np.take_along_axis(ids, positions, axis=1),
        "next_sentence": generator.integers(0, 2, batch, dtype=np.int32),
    }


# ------------------------------------------------------------------------------------------------------------
# Hugging Face transformers on PyTorch: BertForPreTraining, autocast, fused AdamW; its masked-LM head is over
# the masked positions only


def huggingface_step(specification: dict) -> Step:
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    torch.manual_seed(specification["seed"])
    torch.set_float32_matmul_precision("high")  # TensorFloat-32 where there is one, as TensorFlow does
    device, dtype = "cuda" if specification["num_gpus"] else "cpu", specification["dtype"]
    attention, *compiled = specification["variant"].split("+")
    config = transformers.BertConfig(**specification["model"], attn_implementation=attention)
    model = transformers.BertForPreTraining(config).train().to(device)
    decayed: dict = {True: [], False: []}
    for name, parameter in model.named_parameters():
        decayed[not ("LayerNorm" in name or name.endswith("bias"))].append(parameter)
    optimizer = torch_optimizer(specification, decayed)
    half = torch.float16 if dtype == "fp16" else torch.bfloat16
    scaler = torch.amp.GradScaler(device, enabled=dtype == "fp16")
    batch = {
        name: torch.from_numpy(value).long().to(device) for name, value in examples(specification).items()
    }
    rows = torch.arange(specification["batch"], device=device)[:, None]

    def loss_of(ids, mask, segments, positions, labels, next_sentence):
        encoded = model.bert(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        words, relation = model.cls(encoded.last_hidden_state[rows, positions], encoded.pooler_output)
        loss = torch.nn.functional.cross_entropy(words.float().flatten(0, 1), labels.flatten())
        return loss + torch.nn.functional.cross_entropy(relation.float(), next_sentence)

    if compiled:
        loss_of = torch.compile(loss_of)

    def step():
        with torch.autocast(device, half, enabled=dtype != "fp32"):
            loss = loss_of(*batch.values())
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), specification["clip_norm"])
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss.detach()

    run, _ = one_by_one(step)
    return run, lambda: torch.cuda.max_memory_allocated() if device == "cuda" else None


def modernbert_config(model: dict, **settings):
    """Returns the ModernBertConfig of transformers for a model, given as the keys of a bert_config.json."""
    import transformers

    sizes = {key: value for key, value in model.items() if key not in ("family", "block_type", "hidden_act")}
    dropped, attention_dropped = sizes.pop("hidden_dropout_prob"), sizes.pop("attention_probs_dropout_prob")
    sizes["norm_eps"] = sizes.pop("layer_norm_eps")
    return transformers.ModernBertConfig(
        **sizes,
        hidden_activation="gelu",
        attention_dropout=attention_dropped,
        embedding_dropout=dropped,
        mlp_dropout=dropped,
        pad_token_id=0,
        **settings,
    )


def torch_optimizer(specification: dict, decayed: dict):
    """Returns AdamW, PyTorch's fused one, or LAMB, which PyTorch lacks: with its functions over lists of
    tensors. `decayed` are the weights {True: those that decay, False: the others}."""
    import torch

    rate, decay, epsilon = (specification[name] for name in ("learning_rate", "weight_decay", "epsilon"))
    groups = [
        {"params": decayed[True], "weight_decay": decay},
        {"params": decayed[False], "weight_decay": 0.0},
    ]
    if specification["optimizer_type"] == "adamw":
        return torch.optim.AdamW(groups, lr=rate, eps=epsilon, fused=True)

    class Lamb(torch.optim.Optimizer):
        """LAMB (You et al. 2019) with bias correction; weights without decay are not adapted."""

        count = 0

        @torch.no_grad()
        def step(self, closure=None):
            self.count += 1
            corrections = 1 - 0.9**self.count, 1 - 0.999**self.count
            for group in self.param_groups:
                weights = group["params"]
                gradients = [weight.grad for weight in weights]
                if self.count == 1:
                    group["m"], group["v"] = ([torch.zeros_like(weight) for weight in weights] for _ in "mv")
                torch._foreach_lerp_(group["m"], gradients, 0.1)
                torch._foreach_mul_(group["v"], 0.999)
                torch._foreach_addcmul_(group["v"], gradients, gradients, 0.001)
                roots = torch._foreach_sqrt(torch._foreach_div(group["v"], corrections[1]))
                torch._foreach_add_(roots, epsilon)
                updates = torch._foreach_div(torch._foreach_div(group["m"], corrections[0]), roots)
                if group["weight_decay"]:
                    torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
                    ratios = torch._foreach_div(torch._foreach_norm(weights), torch._foreach_norm(updates))
                    torch._foreach_mul_(updates, ratios)
                torch._foreach_add_(weights, updates, alpha=-group["lr"])

    return Lamb(groups, {"lr": rate})


# ------------------------------------------------------------------------------------------------------------
# keras-hub on TensorFlow: BertBackbone, MaskedLMHead and a next-sentence head, AdamW, train_on_batch


def keras_hub_step(specification: dict) -> Step:
    os.environ["KERAS_BACKEND"] = "tensorflow"
    import keras

    if specification["dtype"] == "bf16":
        keras.config.set_dtype_policy("mixed_bfloat16")
    keras.utils.set_random_seed(specification["seed"])
    model = keras_hub_model(specification["model"], specification["predictions"])
    optimizer = keras.optimizers.AdamW(
        specification["learning_rate"],
        weight_decay=specification["weight_decay"],
        epsilon=specification["epsilon"],
        global_clipnorm=specification["clip_norm"],
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "layer_norm", "gamma", "beta"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss={"masked_lm": loss, "next_sentence": loss}, jit_compile=False)
    batch = examples(specification)
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

    return one_by_one(step)


def keras_hub_model(sizes: dict, predictions: int):
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


# ------------------------------------------------------------------------------------------------------------
# The TensorFlow Model Garden: BertPretrainerV2 with a next-sentence head; its AdamWeightDecay clips


def tf_models_step(specification: dict) -> Step:
    import tensorflow as tf

    if specification["dtype"] == "bf16":
        tf.keras.mixed_precision.set_global_policy("mixed_bfloat16")
    tf.keras.utils.set_random_seed(specification["seed"])
    model = tf_models_model(specification["model"])
    optimizer = tf_models_optimizer(specification)
    batch = {name: tf.constant(value) for name, value in examples(specification).items()}
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

    return one_by_one(lambda: update().numpy())


def tf_models_model(sizes: dict):
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


def tf_models_optimizer(specification: dict):
    from official.modeling.optimization import legacy_adamw

    return legacy_adamw.AdamWeightDecay(
        learning_rate=specification["learning_rate"],
        weight_decay_rate=specification["weight_decay"],
        epsilon=specification["epsilon"],
        exclude_from_weight_decay=["LayerNorm", "layer_norm", "bias"],
        gradient_clip_norm=specification["clip_norm"],
    )


# ------------------------------------------------------------------------------------------------------------
# This project's own step, as train.py runs it, the loop in the graph


def ours_step(specification: dict) -> Step:
    import official

    official.choose_kernels(specification["dtype"])
    from official.reporting.environment import peak_memory_bytes
    from official.tasks import TASKS
    from official.training import step_benchmark

    kernels, *compiled = specification["variant"].split("+")
    settings = {
        "optimizer_type": specification["optimizer_type"],
        "num_gpus": specification["num_gpus"],
        "kernels": kernels,
        "enable_xla": bool(compiled) or None,
        "loss_scale": "dynamic" if specification["dtype"] == "fp16" else None,
        "lr_schedule": json.dumps({"0": specification["learning_rate"]}),
        "warmup_steps": None,
        "weight_decay_rate": specification["weight_decay"],
        "epsilon": specification["epsilon"],
        "clip_norm": specification["clip_norm"],
        "max_predictions_per_seq": specification["predictions"],
    }
    config = step_benchmark.step_config(
        specification["model"],
        specification["length"],
        specification["batch"],
        specification["dtype"],
        settings,
    )
    run = step_benchmark.make_step(config, TASKS["pretrain"], 1, records(specification))
    return lambda count: [run(count)], lambda: peak_memory_bytes() if specification["num_gpus"] else None


def records(specification: dict) -> dict:
    """Returns the examples of all systems, {feature of a record: array [batch, ..]}."""
    import numpy as np

    made = examples(specification)
    return {
        "input_ids": made["input_ids"],
        "input_mask": made["input_mask"],
        "segment_ids": made["segment_ids"],
        "masked_lm_positions": made["positions"],
        "masked_lm_ids": made["labels"],
        "masked_lm_weights": np.ones(made["labels"].shape, np.float32),
        "next_sentence_labels": made["next_sentence"][:, None],
        "example_weights": np.ones(specification["batch"], np.float32),
    }


STEPS: dict[str, Callable[[dict], Step]] = {
    "ours": ours_step,
    "huggingface": huggingface_step,
    "tf_models": tf_models_step,
    "keras_hub": keras_hub_step,
}

if __name__ == "__main__":
    main()
