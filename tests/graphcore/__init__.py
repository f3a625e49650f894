"""Tests of `official.graphcore`. What needs the fake of the IPUs, or minutes, is marked `nightly`."""
