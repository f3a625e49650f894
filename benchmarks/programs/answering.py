"""Hugging Face's BertForQuestionAnswering of a folder, in PyTorch and exported as a user would.

Variants: eager and sdpa, the two kinds of attention; compiled, sdpa with torch.compile; onednn, sdpa with the
linear layers of torch.utils.mkldnn, whose float32 products are oneDNN's instead of MKL's; frozen, compiled
with weights that are constants, which lets the compiler lay them out for the products; onnxruntime, exported
by torch.onnx; openvino, by openvino.convert_model.
"""

import os
import runpy
import threading
import types

import numpy as np

# The protocol of all systems, without this project's package.
asking = types.SimpleNamespace(**runpy.run_path(os.path.join(os.environ["BERT_ANSWERING"], "answering.py")))
_NAMES = ("input_ids", "attention_mask", "token_type_ids")


def padded(batch, width: "int | None") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns ids, mask and segments, int64 [N, L], one sequence per row: L is `width`, or the length of the
    longest."""
    is_token_NL = np.arange(width or batch.lengths_N.max()) < batch.lengths_N[:, None]
    ids_NL, segments_NL = (np.zeros(is_token_NL.shape, np.int64) for _ in range(2))
    ids_NL[is_token_NL], segments_NL[is_token_NL] = batch.ids_T, batch.segments_T
    return ids_NL, is_token_NL.astype(np.int64), segments_NL


def end_to_end(start_NL: np.ndarray, end_NL: np.ndarray, lengths_N: np.ndarray) -> np.ndarray:
    """Returns the logits of padded rows without padding, concatenated: float32 [2, T]."""
    is_token_NL = np.arange(start_NL.shape[1]) < lengths_N[:, None]
    return np.stack([start_NL[is_token_NL], end_NL[is_token_NL]]).astype(np.float32)


def make_pytorch(specification: dict):
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
    """Returns (batch, width) -> logits of the model, without padding, see `end_to_end`."""
    import torch

    def answer(batch, width):
        ids, mask, segments = (torch.from_numpy(values) for values in padded(batch, width))
        with torch.inference_mode():
            outputs = model(input_ids=ids, attention_mask=mask, token_type_ids=segments)
        start, end = outputs.start_logits.float().numpy(), outputs.end_logits.float().numpy()
        return end_to_end(start, end, batch.lengths_N)

    return answer


def make_exported(specification: dict):
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    model = transformers.BertForQuestionAnswering.from_pretrained(specification["model"]).eval()
    example = tuple(torch.from_numpy(values) for values in padded(_example(), None))
    run, versions = {"onnxruntime": _onnxruntime, "openvino": _openvino}[specification["variant"]](
        model, example, specification
    )

    def answer(batch, width):
        start, end = run(dict(zip(_NAMES, padded(batch, width))))
        return end_to_end(start, end, batch.lengths_N)

    return answer, {**versions, "torch": torch.__version__, "transformers": transformers.__version__}


def _example():
    """Returns two sequences of different lengths, for tracing the export."""
    lengths_N = np.array([16, 12], np.int32)
    return asking.Batch(np.ones(28, np.int32), np.zeros(28, np.int32), lengths_N)


def _onnxruntime(model, example, specification):
    import onnxruntime
    import torch

    path = os.path.join(os.getcwd(), "exported.onnx")
    outputs = ["start_logits", "end_logits"]
    axes = {name: {0: "batch", 1: "tokens"} for name in (*_NAMES, *outputs)}
    arguments = {"input_names": list(_NAMES), "output_names": outputs, "dynamic_axes": axes}
    torch.onnx.export(model, _in_order(model, example), path, dynamo=False, opset_version=17, **arguments)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = specification["threads"]
    session = onnxruntime.InferenceSession(path, options, ["CPUExecutionProvider"])
    return lambda feeds: session.run(outputs, feeds), {"onnxruntime": onnxruntime.__version__}


def _in_order(model, example):
    """Returns the example in the order of the model's arguments."""
    import inspect

    by_name = dict(zip(_NAMES, example))
    return tuple(by_name[name] for name in inspect.signature(model.forward).parameters if name in by_name)


def _openvino(model, example, specification):
    import openvino

    settings = {
        "INFERENCE_NUM_THREADS": specification["threads"],
        "INFERENCE_PRECISION_HINT": {"fp32": "f32", "bf16": "bf16"}[specification["dtype"]],
        "PERFORMANCE_HINT": "LATENCY",
    }
    converted = openvino.convert_model(model, example_input=dict(zip(_NAMES, example)))
    compiled = openvino.Core().compile_model(converted, "CPU", settings)
    of_thread = threading.local()

    def run(feeds):
        if not hasattr(of_thread, "request"):
            of_thread.request = compiled.create_infer_request()
        outputs = of_thread.request.infer(feeds)
        return outputs[0], outputs[1]

    return run, {"openvino": openvino.__version__}


if __name__ == "__main__":
    EXPORTED = ("onnxruntime", "openvino")
    asking.serve(lambda asked: (make_exported if asked["variant"] in EXPORTED else make_pytorch)(asked))
