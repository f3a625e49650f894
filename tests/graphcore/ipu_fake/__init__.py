"""A fake of Graphcore's TensorFlow 2.6 IPU API: refuses what the real one refuses, and trains on the CPU.

    with ipu_fake.installed(ipus=4):
        from tensorflow.python import ipu

It knows the functional part (configuration, strategy, queues, pipelines, embedded runtime), not Keras'
extensions. What the published sources leave open is strict here, and marked "not in the sources read".
"""

from tests.graphcore.ipu_fake.install import installed

__all__ = ["installed"]
