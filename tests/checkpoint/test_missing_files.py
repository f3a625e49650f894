"""Checkpoints of which files are missing, cut off, or pointers of Git LFS: one line says what is wrong."""

import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
from safetensors.numpy import load_file, save_file

from official.checkpoint.containers import onnx_file
from official.cli import checkpoints
from official.io import files
from official.io.errors import ConfigError
from tests.checkpoint.test_format_huggingface import named_weights, shard, weights, write_folder

POINTER = files.POINTER_START + b"\noid sha256:" + b"7" * 64 + b"\nsize 440000000\n"
LFS = "it is a Git LFS pointer (440,000,000 bytes in the store), not the file: git lfs pull"


def fault_of(path) -> str:
    """Returns what `bert inspect` says of a checkpoint, '' where nothing is wrong."""
    try:
        checkpoints.inspect_checkpoint(str(path), digest=False)
    except ConfigError as error:
        return str(error)
    return ""


def write_bundle(folder, shards=1) -> str:
    """Writes Google's form of an encoder, its values in some files."""
    folder.mkdir()
    arrays, parts = weights(), [str(folder / f"part-{number}") for number in range(shards)]
    for number, part in enumerate(parts):
        own = sorted(arrays)[number::shards]
        values = [tf.constant(arrays[name]) for name in own]
        tf.raw_ops.SaveV2(prefix=part, tensor_names=own, shape_and_slices=[""] * len(own), tensors=values)
    prefix = str(folder / "m")
    tf.raw_ops.MergeV2Checkpoints(checkpoint_prefixes=parts, destination_prefix=prefix)
    return prefix


def test_a_bundle_whose_values_are_missing_is_not_whole(tmp_path):
    prefix = pathlib.Path(write_bundle(tmp_path / "one"))
    data = prefix.with_name("m.data-00000-of-00001")
    assert fault_of(prefix) == fault_of(prefix.parent) == fault_of(data) == ""
    content, wrong = data.read_bytes(), []
    for change, expected in (
        (lambda: data.write_bytes(content[:-1]), "m.data-00000-of-00001: truncated, "),
        (lambda: data.write_bytes(b""), "m.data-00000-of-00001: truncated, 0 bytes for tensors of "),
        (lambda: data.write_bytes(POINTER), f"m.data-00000-of-00001: {LFS}"),
        (data.unlink, "data files of m.index are missing: m.data-00000-of-00001"),
        (lambda: prefix.with_name("m.index").write_bytes(POINTER), f"m.index: {LFS}"),
    ):
        change()
        found = fault_of(prefix)
        if expected not in found or "unreadable checkpoint" not in found:
            wrong.append((expected, found))
    assert not wrong


def test_all_values_of_a_bundle_are_needed(tmp_path):
    # Texts take their own bytes: the graph of an object-based checkpoint is one.
    root = tf.train.Checkpoint(net=tf.Variable(np.ones((300, 7), np.float32), name="net/kernel"))
    prefix = root.save(str(tmp_path / "ckpt"))
    assert fault_of(prefix) == ""
    os.truncate(f"{prefix}.data-00000-of-00001", os.path.getsize(f"{prefix}.data-00000-of-00001") - 1)
    assert "unreadable checkpoint" in fault_of(prefix)
    prefix = write_bundle(tmp_path / "three", shards=3)
    paths = sorted((tmp_path / "three").glob("m.data-*"))
    assert len(paths) == 3 and fault_of(prefix) == ""
    paths[1].rename(tmp_path / "kept")
    assert "data files of m.index are missing: m.data-00001-of-00003" in fault_of(prefix)
    paths[1].write_bytes((tmp_path / "kept").read_bytes()[:-9])
    assert "truncated" in fault_of(prefix)


def test_safetensors_that_are_missing_or_pointers(tmp_path):
    write_folder(tmp_path, weights())
    whole = tmp_path / "model.safetensors"
    content = load_file(whole)
    whole.write_bytes(POINTER)
    assert f"model.safetensors: {LFS}" in fault_of(tmp_path) and LFS in fault_of(whole)
    save_file(content, whole)
    shard(tmp_path)
    assert fault_of(tmp_path) == ""
    part = tmp_path / "model-00001-of-00002.safetensors"
    part.write_bytes(POINTER)
    assert f"model-00001-of-00002.safetensors: {LFS}" in fault_of(tmp_path)
    part.unlink()
    assert "model-00001-of-00002.safetensors: No such file in the folder" in fault_of(tmp_path)


def test_values_beside_an_onnx_file_are_needed(tmp_path, monkeypatch):
    pytest.importorskip("onnx")
    monkeypatch.setattr(onnx_file, "_MAX_BYTES", 0)  # they go to a second file
    path = str(tmp_path / "m.onnx")
    onnx_file.write(named_weights(), path)
    assert "unreadable" not in fault_of(path)
    data = pathlib.Path(f"{path}.data")
    os.truncate(data, os.path.getsize(path) // 2)
    assert "m.onnx.data: truncated or damaged" in fault_of(path)
    data.write_bytes(POINTER)
    assert f"m.onnx.data: {LFS}" in fault_of(path)
    data.unlink()
    assert "m.onnx.data: No such file" in fault_of(path)
    pathlib.Path(path).write_bytes(POINTER)
    assert f"m.onnx: {LFS}" in fault_of(path)
