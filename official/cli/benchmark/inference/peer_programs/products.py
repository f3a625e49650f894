"""Bare matrix products of TensorFlow: what the machine's cores reach at most. A batch is a chain of them."""

import asking


def make(specification: dict):
    import official

    official.choose_kernels(specification["dtype"])
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(specification["threads"])
    from official.training import step_benchmark

    multiply, flops = step_benchmark.make_products(specification["dtype"])
    return lambda batch, width: multiply(), {"flops": flops}


if __name__ == "__main__":
    asking.serve(make)
