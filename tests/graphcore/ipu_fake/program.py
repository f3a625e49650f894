"""How the fake runs a pipeline: micro batches one after the other, all replicas, then one weight update.

The real one overlaps the stages; the results are the same, because weights stay as they are until the update.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tests.graphcore.ipu_fake import machine, pipelining, replicas, stages
from tests.graphcore.ipu_fake.pipelining import OptimizerFunctionOutput, Settings


class Program:
    """A pipeline that is being built.

    Attributes:
      settings: its arguments.
      replicas: how many copies of it run.
      tracer: the stages.
      variables: what the optimizer changes.
      micro: an element of the infeed -> what is fed out, last stage's outputs, gradients: a traced function.
      sizes: the numbers of these tensors.
    """

    def __init__(self, settings: Settings):
        self.settings = settings
        self.replicas = pipelining.replicas_of(settings)
        self.variables: list[Any] = []
        self.micro = self.trace()
        self.sizes = [len(part) for part in self.micro.structured_outputs]

    def trace(self) -> Any:
        """Returns a micro batch as a traced function; also traces the stages, again if they were before."""
        self.tracer = stages.Tracer()
        specs = self.settings.infeed_queue.flat_spec()
        micro = tf.function(self._micro, autograph=False).get_concrete_function(*specs)
        stages.variables_captured(micro.captured_inputs, "the pipeline")
        stages.check_graph(micro.graph, "the pipeline")
        return micro

    def _micro(self, *flat: tf.Tensor) -> tuple[list[tf.Tensor], list[tf.Tensor], list[tf.Tensor]]:
        """One micro batch, forward and backward."""
        values = list(flat)
        for stage, ipu in zip(self.settings.computational_stages, self.settings.device_mapping):
            values = self.tracer.call(stage, ipu, values)
        if not self.settings.training:
            return values, [], []
        made = self._optimizer(values)
        mask = self.settings.outfeed_mask or [False] * len(values)
        if len(mask) != len(values):
            raise ValueError(
                f"The last computational stage has {len(values)} outputs, but the `outfeed_mask` has elements"
                f" {len(mask)} - these need to match in size."
            )
        pairs = made.opt.compute_gradients(made.loss, **made.compute_gradients_kwargs)
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        self.variables = [variable for _, variable in pairs]
        fed = [each for each, masked in zip(values, mask) if not masked]
        return fed, values, [tf.convert_to_tensor(gradient) for gradient, _ in pairs]

    def _optimizer(self, outputs: list[tf.Tensor]) -> OptimizerFunctionOutput:
        """Calls the optimizer function, for the gradients and for the update (the real one: once)."""
        made = self.settings.optimizer_function(*outputs)
        if not isinstance(made, OptimizerFunctionOutput):
            raise TypeError("optimizer_function must return an OptimizerFunctionOutput")
        return made

    def zeros(self) -> list[tf.Tensor]:
        """Returns what the sums over the micro batches and the last outputs start with, of all replicas: of
        each the gradients, the outputs, and what is fed out."""
        flat, (fed, outputs, _) = list(self.micro.outputs), self.sizes
        order = [*flat[fed + outputs :], *flat[fed : fed + outputs], *flat[:fed]]
        return [tf.zeros(each.shape, each.dtype) for each in order] * self.replicas

    def add(self, sums: list[tf.Tensor]) -> list[tf.Tensor]:
        """Runs one micro batch of every replica. Returns the new sums; see `zeros`."""
        size, new, all_fed = len(sums) // self.replicas, [], []
        for replica in range(self.replicas):
            fed, outputs, grads = self.micro(*self.settings.infeed_queue.take())
            before = sums[replica * size : (replica + 1) * size]
            new += [old + gradient for old, gradient in zip(before, grads)] + list(outputs)
            new += [old + each for old, each in zip(before[len(grads) + len(outputs) :], fed)]
            all_fed.append(list(fed))
        if not self.settings.accumulate_outfeed:
            self.feed(all_fed)
        return new

    def feed(self, all_fed: list[list[tf.Tensor]]) -> None:
        """Gives the outputs of all replicas to the outfeed."""
        self.settings.outfeed_queue.put(
            [tf.stack(parts) for parts in zip(*all_fed)] if self.replicas > 1 else all_fed[0]
        )

    def update(self, sums: list[tf.Tensor]) -> None:
        """Changes the weights once; checks that all variables that this uses were created on the IPU."""
        graph, grads = sums[0].graph, len(self.variables)
        known = len(graph.get_operations())
        size = len(sums) // self.replicas
        own = sums[:size]  # of replica 0
        with replicas.tracing([sums[index::size] for index in range(grads)]):
            made = self._optimizer(own[grads : grads + self.sizes[1]])
            made.opt.apply_gradients(list(zip(own[:grads], self.variables)))
        operations = graph.get_operations()[known:]
        inputs = [each for operation in operations for each in operation.inputs if each.dtype == tf.resource]
        handles = {id(stages.outer_tensor(each)): each for each in reversed(inputs)}
        stages.variables_captured(handles.values(), "apply_gradients", getattr(graph, "variables", ()))


def build(settings: Settings) -> tf.Operation:
    """Compiles a pipeline and puts it into the graph of the program."""
    here, graph = machine.current, tf.compat.v1.get_default_graph()
    pipelining.check_limits(settings)
    with tf.name_scope("ipu_fake_pipeline"):
        program = Program(settings)
        settings.outfeed_queue.reserve(program.micro.outputs[: program.sizes[0]], program.replicas, graph)
        micro_batches = 1 if settings.accumulate_outfeed else settings.gradient_accumulation_count
        here.fed.append((graph, settings.outfeed_queue, settings.repeat_count * micro_batches))
        if hasattr(here.running, "keep"):
            here.running.keep(program)
            return tf.no_op()
        done = _repeat(program)
    pipelining.check_memory(settings, program)
    here.compiled.append(program)
    return done


def _repeat(program: Program) -> tf.Operation:
    """Runs the pipeline as often as wanted."""
    settings = program.settings

    def once(index: tf.Tensor) -> list[tf.Tensor]:
        def body(micro: tf.Tensor, *sums: tf.Tensor) -> list[tf.Tensor]:
            return [micro + 1, *program.add(list(sums))]

        start = [tf.constant(0), *program.zeros()]
        count = settings.gradient_accumulation_count
        loop = tf.while_loop(lambda micro, *sums: micro < count, body, start, parallel_iterations=1)
        sums = list(loop[1:])
        if settings.training:
            program.update(sums)
        if settings.accumulate_outfeed:
            fed, size = program.sizes[0], len(sums) // program.replicas
            program.feed([sums[end - fed : end] for end in range(size, len(sums) + 1, size)])
        return [index + 1]

    if settings.repeat_count == 1:
        return tf.group(once(tf.constant(0)))
    limit = settings.repeat_count
    return tf.group(tf.while_loop(lambda index: index < limit, once, [tf.constant(0)], parallel_iterations=1))
