"""The processes of a run, started and watched; and what other launchers are given. No TensorFlow."""
