"""Hugging Face transformers on PyTorch: BertForPreTraining, autocast, fused AdamW.

The masked-LM head is over the masked positions only.
"""

import worker


def make_step(specification: dict):
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    torch.manual_seed(specification["seed"])
    config = transformers.BertConfig(**specification["model"], attn_implementation=specification["variant"])
    model = transformers.BertForPreTraining(config).train()
    decayed: dict = {True: [], False: []}
    for name, parameter in model.named_parameters():
        decayed[not ("LayerNorm" in name or name.endswith("bias"))].append(parameter)
    groups = [
        {"params": decayed[True], "weight_decay": specification["weight_decay"]},
        {"params": decayed[False], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=specification["learning_rate"], eps=specification["epsilon"], fused=True
    )
    batch = {name: torch.from_numpy(value).long() for name, value in worker.examples(specification).items()}
    rows = torch.arange(specification["batch"])[:, None]

    def step():
        with torch.autocast("cpu", torch.bfloat16, enabled=specification["dtype"] == "bf16"):
            encoded = model.bert(
                input_ids=batch["input_ids"],
                attention_mask=batch["input_mask"],
                token_type_ids=batch["segment_ids"],
            )
            words, relation = model.cls(
                encoded.last_hidden_state[rows, batch["positions"]], encoded.pooler_output
            )
        loss = torch.nn.functional.cross_entropy(words.float().flatten(0, 1), batch["labels"].flatten())
        loss = loss + torch.nn.functional.cross_entropy(relation.float(), batch["next_sentence"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), specification["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


if __name__ == "__main__":
    worker.serve(make_step)
