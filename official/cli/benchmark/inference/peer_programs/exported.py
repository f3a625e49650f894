"""Hugging Face's model as a user exports it: by torch.onnx to ONNX Runtime, or by openvino.convert_model."""

import os
import threading

import asking
import numpy as np

_NAMES = ("input_ids", "attention_mask", "token_type_ids")


def make(specification: dict):
    import torch
    import transformers

    torch.set_num_threads(specification["threads"])
    model = transformers.BertForQuestionAnswering.from_pretrained(specification["model"]).eval()
    example = tuple(torch.from_numpy(values) for values in asking.padded(_example(), None))
    run, versions = {"onnxruntime": _onnxruntime, "openvino": _openvino}[specification["variant"]](
        model, example, specification
    )

    def answer(batch, width):
        start, end = run(dict(zip(_NAMES, asking.padded(batch, width))))
        return asking.end_to_end(start, end, batch.lengths_N)

    return answer, {**versions, "torch": torch.__version__, "transformers": transformers.__version__}


def _example() -> asking.Batch:
    """Returns two sequences of different lengths, for the export to follow."""
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
    """Returns the example in the order of the model's own arguments."""
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
    asking.serve(make)
