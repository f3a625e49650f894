"""BERT training, fine-tuning and conversion on TensorFlow 2."""

import os
import time

STARTED = time.time()  # when this process began, as near as code of its own can tell

# TensorFlow reads these when it is imported, so they are set before anything below can import it.
# setdefault: an explicit setting in the environment wins.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # keep start-up noise (CUDA probes, plugin registration) off the screen
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")  # vendor matrix products on CPUs
