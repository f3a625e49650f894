"""Prints the public names of the TensorFlow of this Python, with the names of their arguments.

PYTHON-3.8 tests/graphcore/tensorflow_names.py > tests/graphcore/tensorflow_2_6_names.txt
"""

import enum
import inspect
import os
import textwrap
import types

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf

LEFT_OUT = {
    "tf.compat",
    "tf.core",
    "tf.estimator",
    "tf.experimental.numpy",
    "tf.feature_column",
    "tf.keras.applications",
    "tf.keras.datasets",
    "tf.keras.preprocessing",
    "tf.lite",
    "tf.python",
    "tf.raw_ops",
    "tf.tools",
}
CLASSES = {"tf.data.Dataset", "tf.data.Options", "tf.distribute.ReduceOp", "tf.VariableAggregation"}
_VARIADIC = {inspect.Parameter.VAR_KEYWORD: "**", inspect.Parameter.VAR_POSITIONAL: "*"}


def arguments(value):
    """Returns "(names of the arguments)"; nothing where they are not known. Every operation has `name`."""
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):
        return ""
    names = [_VARIADIC.get(each.kind, each.name) for each in parameters]
    return "({})".format(",".join(name for name in names if name not in ("self", "name")))


def collect(module, path, with_arguments=True, with_modules=True):
    """Returns {scope: names} of a module and, unless they are left out, of those in it."""
    sections = {path: set()}
    for name in dir(module):
        if name.startswith("_"):
            continue
        value, where = getattr(module, name), f"{path}.{name}"
        if isinstance(value, types.ModuleType):
            if with_modules and where not in LEFT_OUT and value.__name__.startswith(("tensorflow", "keras")):
                sections[path].add(name)
                sections.update(collect(value, where))
            continue
        is_called = callable(value) and not isinstance(value, tf.DType)
        sections[path].add(name + (arguments(value) if with_arguments and is_called else ""))
        if isinstance(value, type) and (issubclass(value, enum.Enum) or where in CLASSES):
            sections[where] = {member for member in dir(value) if not member.startswith("_")}
    return sections


def main():
    sections = collect(tf, "tf")
    sections["tf"] |= {"compat", "raw_ops"}
    sections["tf.compat"] = {"v1"}
    sections.update(collect(tf.raw_ops, "tf.raw_ops", with_arguments=False))
    for path, module in (("tf.compat.v1", tf.compat.v1), ("tf.compat.v1.train", tf.compat.v1.train)):
        sections.update(collect(module, path, with_arguments=False, with_modules=False))
    sections["tf.compat.v1"].add("train")
    print(f"# Names of TensorFlow {tf.__version__}, by tests/graphcore/tensorflow_names.py.")
    for path, names in sorted(sections.items()):
        lines = textwrap.wrap(" ".join(sorted(names)), 110, break_long_words=False, break_on_hyphens=False)
        print("", f"[{path}]", *lines, sep="\n")


if __name__ == "__main__":
    main()
