"""Inference with any model: `load` a run or checkpoint, then call its methods.

    from official.inference import load

    load("runs/squad_base").answer("Who was first?", "The first one was Ada.").text
    load("runs/sst2").classify("A fine film.").label
    load("all-MiniLM-L6-v2").embed(["one text", "another"])
    load("bert-base-uncased").fill_mask("The capital of France is [MASK].")

The path is a run, an export, or a checkpoint of any format. A method without a matching head in the model
raises ConfigError.
"""

import official  # first: sets variables that TensorFlow reads on import
from official.inference.methods import Answer, Label, Model, Word, load
from official.io.sentence_folder import EmbeddingSettings

__all__ = ["Answer", "EmbeddingSettings", "Label", "Model", "Word", "load", "official"]
