"""`ipu.serving`: a SavedModel of an inference step or of a pipeline, with its executable among the assets."""

from __future__ import annotations

import inspect
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import application, machine, pipelining, queues


class EmbeddedModel(tf.Module):
    """What is saved: the executable, and a function that runs it."""

    def __init__(self, path: str, predict: Callable):
        super().__init__()
        self.filename = tf.saved_model.Asset(path)
        self.predict = predict


def check_folder(export_dir: str, purge: bool) -> None:
    """Empties the folder if wanted.

    Raises:
      ValueError: it is not empty.
    """
    if os.path.isdir(export_dir) and os.listdir(export_dir):
        if not purge:
            raise ValueError("Directory is not empty. Please specify an empty directory.")
        shutil.rmtree(export_dir)


def signature_of(
    function: Callable, signature: Any, dataset: Any, skip: int, what: str
) -> list[tf.TensorSpec]:
    """Returns the tensors that a function takes, named like its arguments.

    Args:
      function: the first function of the model.
      signature: list or tuple of TensorSpec, or None.
      dataset: a tf.data.Dataset with such elements, or None.
      skip: how many first arguments come from elsewhere.
      what: the arguments' name, for messages.

    Raises:
      ValueError: both or none are given, or another number than the function takes.
      TypeError: other types.
    """
    if signature is not None and dataset is not None:
        raise ValueError(f"Both {what} and input_dataset cannot be provided. Please pass only one of them.")
    if dataset is not None:
        if not isinstance(dataset, tf.data.Dataset):
            raise TypeError("If input_dataset is provided, it should be an instance of tf.Dataset.")
        signature = dataset.element_spec
        signature = [signature] if isinstance(signature, tf.TensorSpec) else signature
    elif signature is None:
        signature = getattr(function, "input_signature", None)
    if signature is None:
        raise ValueError(f"Missing {what} for {function}")
    if not isinstance(signature, (tuple, list)):
        raise TypeError(f"{what} must be either a tuple or a list, received {type(signature)}")
    python = getattr(function, "python_function", function)
    names = list(inspect.signature(python).parameters)[skip:]
    if len(names) != len(signature):
        raise ValueError(f"Length of {what} does not match the number of arguments of {function}")
    return [tf.TensorSpec(each.shape, each.dtype, name) for each, name in zip(signature, names)]


def queues_of(signature: list[tf.TensorSpec]) -> tuple[Any, Any]:
    """Returns an infeed of zeros and an outfeed."""
    zeros = tuple(tf.zeros(each.shape, each.dtype) for each in signature)
    return queues.IPUInfeedQueue(tf.data.Dataset.from_tensors(zeros).repeat()), queues.IPUOutfeedQueue()


def export(build: Callable, export_dir: str, signature: list[tf.TensorSpec], names: Any, steps: Any) -> Any:
    """Compiles an application and saves it.

    Args:
      build: the function with the pipeline.
      export_dir: the folder.
      signature: what a batch is.
      names: names of the outputs, or None for output_0, output_1 and so on.
      steps: functions before and after the model, each None if there is none.

    Returns:
      The function that was saved.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, f"application_{uuid.uuid4()}.poplar_exec")
        application.experimental_application_compile_op(build, output_path=path, freeze_variables=True)
        context = application.embedded_runtime_start(path, [], os.path.basename(path))
        before, after = steps

        def predict(*args: tf.Tensor) -> dict[str, tf.Tensor]:
            args = as_list(before(*args)) if before is not None else list(args)
            outputs = context.function(*args)
            outputs = as_list(after(*outputs)) if after is not None else list(outputs)
            keys = list(names) if names else [f"output_{index}" for index in range(len(outputs))]
            if len(keys) != len(outputs):
                raise ValueError(f"output_names: {len(keys)} names for {len(outputs)} outputs")
            return dict(zip(keys, outputs))

        saved = tf.function(predict, input_signature=signature, autograph=False)
        tf.saved_model.save(EmbeddedModel(path, saved), export_dir, signatures=saved.get_concrete_function())
    return saved


def as_list(outputs: Any) -> list[Any]:
    """Returns outputs of a function as a list."""
    return list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]


def export_pipeline(
    computational_stages: list[Callable],
    export_dir: str,
    iterations: int,
    inputs: Any = None,
    device_mapping: Any = None,
    pipeline_schedule: Any = None,
    poplar_options: Any = None,
    name: str | None = None,
    predict_step_signature: Any = None,
    input_dataset: Any = None,
    output_names: Any = None,
    preprocessing_step: Callable | None = None,
    preprocessing_step_signature: Any = None,
    postprocessing_step: Callable | None = None,
    postprocessing_step_signature: Any = None,
    purge_export_dir: bool = False,
) -> Any:
    """Saves a pipeline for serving.

    Args: as those of pipeline() and of export_single_step.

    Returns:
      The function that was saved.
    """
    check_folder(export_dir, purge_export_dir)
    machine.configured()
    first, skip = computational_stages[0], len(inputs or [])
    signature = signature_of(first, predict_step_signature, input_dataset, skip, "predict_step_signature")
    infeed, outfeed = queues_of(signature)

    def build() -> None:
        pipelining.pipeline(
            computational_stages,
            iterations,
            inputs=inputs,
            infeed_queue=infeed,
            outfeed_queue=outfeed,
            device_mapping=device_mapping,
            pipeline_schedule=pipeline_schedule,
            forward_propagation_stages_poplar_options=poplar_options,
            name=name,
        )

    if preprocessing_step is not None:
        signature = signature_of(
            preprocessing_step, preprocessing_step_signature, None, 0, "preprocessing_step_signature"
        )
    return export(build, export_dir, signature, output_names, (preprocessing_step, postprocessing_step))


def export_single_step(
    predict_step: Callable,
    export_dir: str,
    iterations: int,
    predict_step_signature: Any = None,
    input_dataset: Any = None,
    output_names: Any = None,
    preprocessing_step: Callable | None = None,
    preprocessing_step_signature: Any = None,
    postprocessing_step: Callable | None = None,
    postprocessing_step_signature: Any = None,
    purge_export_dir: bool = False,
) -> Any:
    """Saves an inference step for serving. Here it is a pipeline whose second stage does nothing.

    Args:
      predict_step: the function.
      export_dir: an empty folder, or none.
      iterations: how often a loop runs it.
      predict_step_signature: its arguments, if no dataset gives them.
      input_dataset: a dataset whose elements are its arguments.
      output_names: names of the outputs.
      preprocessing_step, postprocessing_step: functions on the host before and after it.
      preprocessing_step_signature, postprocessing_step_signature: their arguments.
      purge_export_dir: whether the folder is emptied before.

    Returns:
      The function that was saved.
    """
    check_folder(export_dir, purge_export_dir)
    signature = signature_of(predict_step, predict_step_signature, input_dataset, 0, "predict_step_signature")
    return export_pipeline(
        [named_like(predict_step), lambda *outputs: outputs],
        export_dir,
        iterations,
        device_mapping=[0, 0],
        pipeline_schedule=pipelining.PipelineSchedule.Sequential,
        predict_step_signature=signature,
        output_names=output_names,
        preprocessing_step=preprocessing_step,
        preprocessing_step_signature=preprocessing_step_signature,
        postprocessing_step=postprocessing_step,
        postprocessing_step_signature=postprocessing_step_signature,
    )


def named_like(function: Callable) -> Callable:
    """Returns a function's Python function."""
    return getattr(function, "python_function", function)


def modules() -> dict[str, dict[str, Any]]:
    """Returns the modules: dotted name below the package -> names in it."""
    return {"serving": {"export_single_step": export_single_step, "export_pipeline": export_pipeline}}
