"""A run on IPUs: the functional pipelines of Graphcore's TensorFlow 2.6, on its Python 3.8.

    python train.py --distribution_strategy=ipu ...
    python -m official.training.ipu CONFIG.json

It shares settings, tasks, model, optimizers, the loop, checkpoints and results with the other runs. Not run
on hardware yet.
"""
