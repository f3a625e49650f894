"""Hugging Face transformers on PyTorch: BertForQuestionAnswering of a folder.

Variants: eager and sdpa, the two kinds of attention; compiled, sdpa with torch.compile; onednn, sdpa with the
linear layers of torch.utils.mkldnn, whose float32 products are oneDNN's instead of MKL's; frozen, compiled
with weights that are constants, which lets the compiler lay them out for the products.
"""

import os

import asking


def make(specification: dict):
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    torch.set_grad_enabled(False)
    variant = specification["variant"]
    attention = "eager" if variant == "eager" else "sdpa"
    model = transformers.BertForQuestionAnswering.from_pretrained(
        specification["model"],
        attn_implementation=attention,
        dtype={"fp32": torch.float32, "bf16": torch.bfloat16}[specification["dtype"]],
    ).eval()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    return make_answer(_varied(torch, model, variant, specification["dynamic"])), versions


def _varied(torch, model, variant: str, dynamic: bool):
    """Returns the model converted or compiled for its variant; `dynamic`: whether batches have many
    shapes."""
    if variant == "onednn":
        from torch.utils import mkldnn

        return mkldnn.to_mkldnn(model, model.dtype)
    if variant not in ("compiled", "frozen"):
        return model
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.getcwd()  # its own folder
    if variant == "frozen":
        from torch._inductor import config

        config.freezing = True
    from torch import _dynamo

    _dynamo.config.recompile_limit = 1000  # a program for each shape; beyond the limit none is compiled
    return torch.compile(model, dynamic=dynamic)


def make_answer(model):
    """Returns (batch, width) -> logits of the model, without padding, see `asking.end_to_end`."""
    import torch

    def answer(batch, width):
        ids, mask, segments = (torch.from_numpy(values) for values in asking.padded(batch, width))
        with torch.inference_mode():
            outputs = model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        start, end = outputs.start_logits.float().numpy(), outputs.end_logits.float().numpy()
        return asking.end_to_end(start, end, batch.lengths_N)

    return answer


if __name__ == "__main__":
    asking.serve(make)
