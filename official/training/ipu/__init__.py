"""A run on IPUs: pre-training with the functional pipelines of Graphcore's TensorFlow 2.6, on its Python 3.8.

    python train.py --distribution_strategy=ipu ...
    python -m official.training.ipu CONFIG.json

It shares settings, model, optimizers, records, checkpoints and lines of metrics with the other runs, and the
rest of `official.training` with none. Not run on hardware yet.
"""
