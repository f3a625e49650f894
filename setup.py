"""Packaging. Exact versions of everything that is installed stand in constraints/, one file a stack.

Two stacks: "tf215", TensorFlow 2.15 with tensorflow-addons, is what Python 3.10 and 3.11 take, and "modern",
the newest TensorFlow with tf_keras, what later ones take. BERT_STACK=modern in the environment takes that one
on every Python: scripts/setup_env.sh --stack=modern.
"""

import os

from setuptools import find_packages, setup

# Stack -> the Pythons that take it unless they are told otherwise.
STACKS = {"tf215": 'python_version < "3.12"', "modern": 'python_version >= "3.12"'}


def per_stack(**requirements: list[str]) -> list[str]:
    """Returns the requirements of the stack of BERT_STACK; without it those of both, each with the marker of
    its Pythons.

    Args:
      requirements: {stack: requirements}.
    """
    chosen = os.environ.get("BERT_STACK")
    if chosen:
        if chosen not in STACKS:
            raise SystemExit(f"BERT_STACK={chosen} is not one of {', '.join(STACKS)}.")
        return requirements.get(chosen, [])
    return [f"{text}; {STACKS[stack]}" for stack, texts in requirements.items() for text in texts]


ONNX = per_stack(
    # From 1.19 on it needs a newer ml-dtypes than TensorFlow 2.15 allows, and does not say so.
    tf215=["onnx>=1.14,<1.19", "protobuf>=3.20.3,<5"],
    modern=["onnx>=1.19,<2"],
)
# ONNX Runtime quantises for both back ends. Python 3.10 takes 1.23, the last one for it.
EXPORT = [*ONNX, "tf2onnx>=1.17,<2", "onnxruntime>=1.23,<2"]

FSSPEC = "fsspec>=2024.10"
S3 = [FSSPEC, "s3fs>=2024.10"]
GCS = [FSSPEC, "gcsfs>=2024.10"]
# From 25 on pyarrow wants NumPy 2.
PYARROW = per_stack(tf215=["pyarrow>=18,<25"], modern=["pyarrow>=20,<27"])
HDFS = [FSSPEC, *PYARROW]

setup(
    name="bert-tf2",
    version="0.2.0.dev0",
    description="BERT training, fine-tuning and conversion on TensorFlow 2.",
    # configs/ of the repository is official/configs of the wheel: see official/cli/configs.py.
    packages=[*find_packages(include=["official*", "tf2_bert*"]), "official.configs"],
    package_dir={"official.configs": "configs"},
    package_data={
        "official": ["py.typed"],
        "official.checkpoint": ["*.jinja"],
        "official.configs": ["**/*.flags", "**/*.json", "**/*.yml"],
        "official.data": ["native/*.cc"],
        "official.native": ["*.cc", "*.h"],
        "official.graphcore": ["*.yml"],
        "official.io": ["*.yml"],
        "official.launching.manifests": ["*.yml"],
        "official.reporting": ["templates/*"],
        "official.serving": ["page/*.html", "page/static/*.js", "page/static/*.css"],
    },
    entry_points={"console_scripts": ["bert = official.cli.main:main"]},
    python_requires=">=3.10,<3.14",
    install_requires=[
        *per_stack(
            tf215=[
                "tensorflow==2.15.1",
                # The published programs' optimizers, which the plain ones are compared with.
                "tensorflow-addons==0.23.0",
                "tensorflow-text==2.15.0",
                "numpy>=1.23.5,<2",
                "ml-dtypes>=0.3.1,<0.4",
                # Later ones lack pkg_resources, which tensorflow-hub and TensorBoard import and do not ask
                # for.
                "setuptools<81",
            ],
            modern=[
                "tensorflow>=2.21,<2.22",
                "tf-keras>=2.21,<2.22",
                "tensorflow-text>=2.21,<2.22",
                "tensorboard>=2.20,<3",  # no longer TensorFlow's own requirement
                "numpy>=2,<3",
                "ml-dtypes>=0.5.1,<1",
            ],
        ),
        "absl-py>=2.0,<3",
        "ml-collections>=1,<2",
        "pyyaml>=6,<7",
        "blingfire>=0.1.8,<0.2",
        "ijson>=3.3,<4",
        "tokenizers>=0.13.3,<1",
        "tqdm>=4.66,<5",
        "psutil>=5.9,<8",
        "shtab>=1.7,<2",
        "matplotlib>=3.8,<4",
        "jinja2>=3.1,<4",
        "safetensors>=0.4.3,<1",
        "scikit-learn>=1.3,<2",
        "scipy>=1.10,<2",
        "threadpoolctl>=3.1,<4",
        "mlperf-logging>=4.1.59,<5",
    ],
    extras_require={
        "gpu": per_stack(tf215=["tensorflow[and-cuda]==2.15.1"], modern=["tensorflow[and-cuda]>=2.21,<2.22"]),
        "wandb": ["wandb>=0.28,<1"],
        "onnx": EXPORT,
        "onnxruntime": EXPORT,
        "openvino": [*EXPORT, "openvino>=2025.2,<2027"],
        "serve": ["tornado>=6.5,<7", "prometheus-client>=0.20,<1"],
        # The engine of data jobs on several machines; 2.52 is the first one whose clusters ask for a secret.
        "ray": ["ray>=2.52,<3", "psutil>=5.9,<8"],
        # Files in stores, one extra a store, and all of them.
        "s3": S3,
        "gcs": GCS,
        "hdfs": HDFS,
        "storage": [*S3, *GCS, *HDFS],
        "wikipedia": ["wikiextractor>=3.1,<4"],
        "parquet": PYARROW,
        "zstd": ["backports-zstd>=1.2,<2"],
        # Shows the trace of a profile. With Python 3.10 it needs versions that TensorFlow does not take.
        "profile": ['xprof>=2.20,<3; python_version >= "3.11"'],
        "languages": ["py3langid>=0.2,<1"],  # for data cards; 0.4 needs NumPy 2, pip takes an earlier one
        # What PerfZero's driver imports; of grpcio-status later versions need a protobuf that TensorFlow 2.15
        # does not take.
        "perfzero": [
            "google-cloud-bigquery>=3.20,<4",
            *per_stack(tf215=["grpcio-status<1.63"], modern=["grpcio-status"]),
        ],
        "docs": ["pdoc>=15,<17"],
        "dev": [
            "pytest>=8,<10",
            "pytest-xdist>=3.6,<4",
            "hypothesis>=6.100,<7",
            "ruff==0.17.6",  # exactly: versions format differently
            "mypy==2.4.1",
            "vermin>=1.6,<2",  # what an IPU run imports is to go through Python 3.8
            # Manifests are tested with Kubernetes' schemas and the models of JobSets.
            "kubernetes-validate>=1.32,<2",
            "kubeflow-trainer-api>=2.1,<3",
            # The server is tested with a client of the v2 protocol, and the messages of TensorFlow Serving.
            'tritonclient[http]>=2.41,<3; python_version >= "3.11"',
            *per_stack(tf215=["tensorflow-serving-api==2.15.1"]),
            "moto[server]>=5,<6",  # a server of the S3 protocol
        ],
    },
)
