"""Starts and watches the processes of a run, and writes manifests for other launchers. No TensorFlow."""
