"""Runs Hugging Face's BERT on a batch, in a process of its own: torch may live in another environment.

    python torch_bert.py FOLDER BATCH.npz OUT.npz float32|float64

Writes sequence and pooled output of the encoder and all hidden states; where the batch has labels also loss,
logits of both pre-training heads, and the gradient of every parameter as `gradient/NAME`.
"""

import sys

import numpy as np
import torch
from transformers import AutoModel, BertForPreTraining


def main(folder: str, batch_file: str, out_file: str, dtype: str) -> None:
    torch.set_num_threads(1)
    batch = {name: torch.from_numpy(array).long() for name, array in np.load(batch_file).items()}
    theirs = {"input_ids": "input_ids", "attention_mask": "input_mask", "token_type_ids": "segment_ids"}
    inputs = {name: batch[ours] for name, ours in theirs.items()}
    labels = {}
    if "labels" in batch:
        labels = {"labels": batch["labels"], "next_sentence_label": batch["next_sentence_labels"]}
    model = (BertForPreTraining if labels else AutoModel).from_pretrained(folder)
    model = model.to(getattr(torch, dtype)).eval()
    encoder = model.bert if labels else model
    with torch.no_grad():
        encoded = encoder(**inputs, output_hidden_states=True)
    found = {"sequence": encoded.last_hidden_state, "pooled": encoded.pooler_output}
    found |= {f"hidden/{number}": hidden for number, hidden in enumerate(encoded.hidden_states)}
    if labels:
        result = model(**inputs, **labels)
        result.loss.backward()
        found |= {"loss": result.loss, "masked": result.prediction_logits}
        found["relation"] = result.seq_relationship_logits
        found |= {f"gradient/{name}": parameter.grad for name, parameter in model.named_parameters()}
    np.savez(out_file, **{name: tensor.detach().numpy() for name, tensor in found.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
