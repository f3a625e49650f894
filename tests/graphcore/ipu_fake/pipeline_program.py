"""How the fake runs a pipeline: micro batches one after the other, all replicas, then one weight update.

The real one overlaps the stages; the results are the same, because weights stay as they are until the update.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import (
    compiler,
    gradient_accumulation,
    machine,
    pipeline_limits,
    pipeline_stages,
    poplar,
    replicas,
)
from tests.graphcore.ipu_fake.pipelining import OptimizerFunctionOutput, Settings, is_optimizer_v2


class Program:
    """A pipeline that is being built.

    Attributes:
      settings: its arguments.
      replicas: how many copies of it run.
      inputs: tensors that every micro batch gets.
      tracer: the stages.
      variables: what the optimizer changes.
      feeds: whether anything goes to the outfeed.
      micro: tensors of a micro batch -> what is fed out, last stage's outputs, gradients: a traced function.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.replicas = pipeline_limits.replicas_of(settings)
        self.inputs = [tf.convert_to_tensor(each) for each in pipeline_inputs(settings.inputs)]
        self.variables: list[Any] = []
        self.fed_structure: Any = None
        self.micro = self.trace()
        self.sizes = [len(part) for part in self.micro.structured_outputs]

    def trace(self) -> Any:
        """Returns a micro batch as a traced function; also traces the stages, again if they were before."""
        self.tracer = pipeline_stages.Tracer()
        queue = self.settings.infeed_queue
        specs = [pipeline_stages.spec_of(each) for each in self.inputs]
        specs += queue.flat_spec() if queue is not None else []
        with pipeline_stages.no_new_variables("the pipeline"):
            micro = tf.function(self._micro, autograph=False).get_concrete_function(*specs)
        pipeline_stages.variables_captured(list(micro.captured_inputs), "the pipeline")
        compiler.check_graph(micro.graph, "the pipeline")
        return micro

    def _micro(self, *flat: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """One micro batch, forward and backward."""
        settings, values = self.settings, list(flat)
        for index, (stage, ipu) in enumerate(zip(settings.computational_stages, settings.device_mapping)):
            values = self.tracer.call(stage, ipu, values, self._arguments if index == 0 else None)
        if not settings.training:
            self.fed_structure = self.tracer.structure if values else None
            if isinstance(self.fed_structure, tuple):
                self.fed_structure = list(self.fed_structure)
            self._check_queue(values)
            return values, [], []
        made = self.optimizer(values)
        fed = self._fed(values, made.loss)
        self.fed_structure = fed[0] if settings.outfeed_loss else list(fed)
        pairs = gradients_of(made)
        self.variables = [variable for gradient, variable in pairs if gradient is not None]
        if not self.variables:
            raise ValueError("No gradients provided for any variable.")
        grads = [tf.convert_to_tensor(gradient) for gradient, _ in pairs if gradient is not None]
        return fed, values, grads

    def _arguments(self, flat: list[tf.Tensor]) -> Any:
        queue, inputs = self.settings.infeed_queue, len(self.inputs)
        if queue is None:
            return flat, {}
        positional, named = queue.arguments(flat[inputs:])
        return flat[:inputs] + positional, named

    def optimizer(self, outputs: list[tf.Tensor]) -> OptimizerFunctionOutput:
        """Calls the optimizer function, for the gradients and for the update (the real one: once)."""
        made = self.settings.optimizer_function(*outputs)
        if not isinstance(made, OptimizerFunctionOutput):
            raise TypeError(
                "optimizer_function must return an OptimizerFunctionOutput"
            )  # not in the sources read
        return made

    def _fed(self, outputs: list[tf.Tensor], loss: tf.Tensor) -> list[tf.Tensor]:
        if self.settings.outfeed_loss:
            return [loss]
        mask = self.settings.outfeed_mask or [False] * len(outputs)
        if len(mask) != len(outputs):
            raise ValueError(
                f"The last computational stage has {len(outputs)} outputs, but the `outfeed_mask` has "
                f"elements {len(mask)} - these need to match in size."
            )
        fed = [each for each, masked in zip(outputs, mask) if not masked]
        self._check_queue(fed)
        return fed

    def _check_queue(self, fed: list[tf.Tensor]) -> None:
        if fed and self.settings.outfeed_queue is None:
            raise ValueError(
                f"The last computational stage has tensor outputs: {', '.join(map(str, fed))}, but no "
                "outfeed_queue has been provided."
            )

    def batch(self) -> list[tf.Tensor]:
        """Returns the inputs and the next element of the infeed."""
        queue = self.settings.infeed_queue
        return self.inputs + (queue.take() if queue is not None else [])

    def zeros(self) -> list[tf.Tensor]:
        """Returns what the sums over the micro batches and the last outputs start with, of all replicas."""
        fed, outputs, grads = self._shapes()
        types = [self.type_of(variable) for variable in self.variables]
        made = [tf.zeros(each.shape, dtype) for each, dtype in zip(grads, types)]
        made += [tf.zeros(each.shape, each.dtype) for each in outputs]
        made += [tf.zeros(each.shape, self.fed_type(each)) for each in fed]
        return made * self.replicas

    def _shapes(self) -> list[list[Any]]:
        flat, found = list(self.micro.outputs), []
        for size in self.sizes:
            found.append(flat[:size])
            flat = flat[size:]
        return found

    def type_of(self, variable: Any) -> Any:
        """Returns the type in which the gradients of a variable are added up."""
        chosen = self.settings.gradient_accumulation_dtype
        if chosen is None:
            return variable.dtype
        return tf.as_dtype(chosen(variable) if callable(chosen) else chosen)

    def fed_type(self, tensor: Any) -> Any:
        """Returns the type in which outputs are added up."""
        chosen = self.settings.accumulate_outfeed_dtype
        if chosen is None:
            return tensor.dtype
        return tf.as_dtype(chosen(tensor) if callable(chosen) else chosen)

    def add(self, sums: list[tf.Tensor], index: tf.Tensor, count: tf.Tensor) -> list[tf.Tensor]:
        """Runs one micro batch of every replica.

        Args:
          sums: as of zeros().
          index: int32 scalar, number of the micro batch in its update.
          count: int32 scalar, micro batches of an update.

        Returns:
          The new sums.
        """
        size = len(sums) // self.replicas
        new, all_fed = [], []
        for replica in range(self.replicas):
            fed, outputs, grads = self.micro(*self.batch())
            mine = sums[replica * size : (replica + 1) * size]
            new += self._add_gradients(mine, grads, index, count) + list(outputs)
            before = mine[len(grads) + len(outputs) :]
            new += [old + tf.cast(each, old.dtype) for old, each in zip(before, fed)]
            all_fed.append(list(fed))
        if all_fed[0] and not self.settings.accumulate_outfeed:
            self.feed(all_fed)
        return new

    def _add_gradients(self, sums: list[Any], grads: list[Any], index: Any, count: Any) -> list[tf.Tensor]:
        keep, take = gradient_accumulation.scales(self.settings.reduction_method, index, count)
        plain = self.settings.reduction_method.name == "SUM"
        new = []
        for old, gradient in zip(sums, grads):
            gradient = tf.cast(gradient, old.dtype)
            if plain:
                new.append(old + gradient)
            else:
                new.append(old * tf.cast(keep, old.dtype) + gradient * tf.cast(take, old.dtype))
        return new

    def feed(self, all_fed: list[list[tf.Tensor]]) -> None:
        """Gives the outputs of all replicas to the outfeed."""
        flat = all_fed[0]
        if self.replicas > 1:
            flat = [tf.stack([part[index] for part in all_fed]) for index in range(len(flat))]
        self.settings.outfeed_queue.put(flat)

    def update(self, sums: list[tf.Tensor]) -> list[Any]:
        """Changes the weights once; returns the variables that only this uses."""
        graph = sums[0].graph
        known = len(graph.get_operations())
        update = replicas.Update(self.replicas, graph)
        size, grads = len(sums) // self.replicas, len(self.variables)
        everything = [
            update.give([sums[r * size + index] for r in range(self.replicas)]) for index in range(size)
        ]
        queue = self.settings.infeed_queue
        depends = [False] * len(self.inputs) + [True] * (len(queue.flat_spec()) if queue is not None else 0)
        for output, varies in zip(everything[grads:], self.tracer.from_batch(depends)):
            if not varies:
                del update.own[id(output)]
        with replicas.tracing(update):
            made = self.optimizer(everything[grads : grads + self.sizes[1]])
            pairs = list(zip(everything[:grads], self.variables))
            made.opt.apply_gradients(pairs, *made.apply_gradients_args, **made.apply_gradients_kwargs)
        operations = graph.get_operations()[known:]
        if self.replicas > 1:
            update.check_equal(operations)
        return pipeline_limits.variables_of(operations, graph)


def pipeline_inputs(inputs: Any) -> list[Any]:
    """Returns the inputs of a pipeline as a list."""
    if inputs is None:
        return []
    return list(inputs) if isinstance(inputs, (list, tuple)) else [inputs]


def gradients_of(made: OptimizerFunctionOutput) -> list[tuple[Any, Any]]:
    """Returns (gradient, variable) as the optimizer computes them.

    Raises:
      RuntimeError: an OptimizerV2 without variables.
    """
    if not is_optimizer_v2(made.opt):
        return list(
            made.opt.compute_gradients(
                made.loss, *made.compute_gradients_args, **made.compute_gradients_kwargs
            )
        )
    variables = list(made.tape.watched_variables()) if made.tape else list(made.variables or [])
    if not variables:
        raise RuntimeError(
            "No variables to optimize. When using OptimizerV2, OptimizerFunctionOutput must contain a list "
            "of variables or a GradientTape."
        )
    return list(zip(made.opt.get_gradients(made.loss, variables), variables))


def build(settings: Settings) -> tf.Operation:
    """Compiles a pipeline and puts it into the graph of the program."""
    here = machine.current
    poplar.check_pipeline(settings)
    static = pipeline_limits.check_count(settings)
    with tf.name_scope("ipu_fake_pipeline"):
        count = tf.cast(tf.convert_to_tensor(settings.gradient_accumulation_count), tf.int32)
        count *= settings.batch_serialization_iterations  # (inferred: each is a micro batch of its own)
        program = Program(settings)
        if program.fed_structure is not None and program.sizes[0]:
            graph = tf.compat.v1.get_default_graph()
            settings.outfeed_queue.reserve(program.fed_structure, program.replicas, graph)
            micro_batches = (static or 1) * settings.batch_serialization_iterations
            elements = settings.repeat_count * (1 if settings.accumulate_outfeed else micro_batches)
            here.fed.append((graph, settings.outfeed_queue, elements))
        if hasattr(here.running, "keep"):
            here.running.keep(program)
            return tf.no_op()
        if static is None:
            pipeline_limits.check_count_later(settings, count)
        limits: dict[str, Any] = {}
        done = repeat(program, count, limits)
    pipeline_limits.finish(settings, program, limits["update_only"])
    return done


def repeat(program: Program, count: tf.Tensor, found: dict[str, Any]) -> tf.Operation:
    """Runs the pipeline as often as wanted; `found` gets the variables that only the update uses."""

    def once(index: tf.Tensor) -> list[tf.Tensor]:
        def body(micro: tf.Tensor, *sums: tf.Tensor) -> list[tf.Tensor]:
            return [micro + 1, *program.add(list(sums), micro, count)]

        start = [tf.constant(0), *program.zeros()]
        loop = tf.while_loop(lambda micro, *sums: micro < count, body, start, parallel_iterations=1)
        sums = list(loop[1:])
        found["update_only"] = program.update(sums) if program.settings.training else []
        fed, size = program.sizes[0], len(sums) // program.replicas
        if fed and program.settings.accumulate_outfeed:
            parts = [sums[(r + 1) * size - fed : (r + 1) * size] for r in range(program.replicas)]
            program.feed(parts)
        return [index + 1]

    if program.settings.repeat_count == 1:
        return tf.group(once(tf.constant(0)))
    limit = program.settings.repeat_count
    return tf.group(tf.while_loop(lambda index: index < limit, once, [tf.constant(0)], parallel_iterations=1))
