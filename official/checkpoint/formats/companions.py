"""What lies beside a checkpoint and does not follow from its tensors: the number of heads, the activation, the vocabulary."""

import dataclasses
import json
import os
import shutil

from official.checkpoint.formats import hf_folder
from official.checkpoint.formats.options import Options
from official.checkpoint.formats.tensors import Tensors
from official.config import BertConfig

CONFIG, VOCABULARY = "bert_config.json", "vocab.txt"


def sizes_beside(location: str) -> dict:
    """Returns the keys of bert_config.json that a configuration beside a checkpoint gives; empty where there is none.

    Looks for Google's bert_config.json, Hugging Face's config.json and a run's config.json. Raises ConfigError for damaged ones.
    """
    folder = location if os.path.isdir(location) else os.path.dirname(location)
    keys = [field.name for field in dataclasses.fields(BertConfig)]
    for name in (CONFIG, hf_folder.CONFIG):
        path = os.path.join(folder, name)
        if os.path.exists(path):
            values = hf_folder.read_config(path)
            values = values["model"] if isinstance(values.get("model"), dict) else hf_folder.sizes(path) if name == hf_folder.CONFIG else values
            return {key: values[key] for key in keys if key in values}
    return {}


def with_companions(options: Options, location: str) -> Options:
    """Returns the options with heads and vocabulary from beside a checkpoint, where they are not given."""
    return dataclasses.replace(
        options, num_attention_heads=options.num_attention_heads or sizes_beside(location).get("num_attention_heads"),
        vocab_file=options.vocab_file or hf_folder.vocabulary_beside(location))


def hand_on(source: str, target: str, tensors: Tensors, options: Options) -> list[str]:
    """Puts bert_config.json and vocab.txt beside a result, where the source has them and the result's folder does not.

    Args:
      source, target: locations.
      tensors: canonical, as written: the vocabulary may have been cut.
      options: of the conversion.

    Returns:
      The files made.
    """
    folder, made = os.path.dirname(target), []
    sizes = sizes_beside(source)
    path = os.path.join(folder, CONFIG)
    if sizes and not os.path.exists(path):
        sizes["vocab_size"] = tensors["bert/embeddings/word_embeddings"].shape[0]
        with open(path + ".tmp", "w", encoding="utf-8") as file:
            json.dump(sizes, file, indent=2, sort_keys=True)
            file.write("\n")
        os.replace(path + ".tmp", path)
        made.append(path)
    path = os.path.join(folder, VOCABULARY)
    if options.vocab_file and not os.path.exists(path):
        shutil.copyfile(options.vocab_file, path + ".tmp")
        os.replace(path + ".tmp", path)
        made.append(path)
    return made
