"""Graphcore's programs and hardware: the IPU back end, poprun, configurations, log style, binary records.

    python train.py --distribution_strategy=ipu ...
    python -m official.graphcore CONFIG.json

Only the command line and tables of names refer to this package: a run on other devices imports none of it. A
run on IPUs uses the functional pipelines of TensorFlow 2.6 in the Poplar SDK, on its Python 3.8, and shares
settings, tasks, model, optimizers, the loop, checkpoints and results with the other runs. Not tested on
hardware yet.
"""
