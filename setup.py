"""Packaging. Exact versions of everything that is installed stand in constraints.txt."""

from setuptools import find_packages, setup

setup(
    name="bert-tf2",
    version="0.1.0",
    description="BERT training, fine-tuning and conversion on TensorFlow 2.",
    # configs/ of the repository is official/configs of the wheel: see official/cli/configs.py.
    packages=[*find_packages(include=["official*", "tf2_bert*"]), "official.configs"],
    package_dir={"official.configs": "configs"},
    package_data={"official.configs": ["**/*.flags", "**/*.json"]},
    entry_points={"console_scripts": ["bert = official.cli.main:main"]},
    python_requires=">=3.10,<3.12",
    install_requires=[
        "tensorflow==2.15.1",
        "tensorflow-addons==0.23.0",
        "tensorflow-text==2.15.0",
        "numpy>=1.23.5,<2",
        "ml-dtypes>=0.3.1,<0.4",
        "absl-py>=2.0,<3",
        "ml-collections>=1.0,<2",
        "blingfire>=0.1.8,<0.2",
        "tokenizers>=0.13.3,<1",
        "tqdm>=4.66,<5",
        "matplotlib>=3.8,<4",
        "safetensors>=0.4.3,<1",
        "scikit-learn>=1.3,<2",
        "scipy>=1.10,<2",
        "setuptools<81",  # later ones lack pkg_resources, which tensorflow-hub and TensorBoard import and do not ask for
        "mlperf-logging>=4.1.59,<5",
    ],
    extras_require={
        "gpu": ["tensorflow[and-cuda]==2.15.1"],
        "wandb": ["wandb>=0.28,<1"],
        # From 1.19 on it needs a newer ml-dtypes than TensorFlow 2.15 allows, and does not say so.
        "onnx": ["onnx>=1.14,<1.19", "protobuf>=3.20.3,<5"],
        "wikipedia": ["wikiextractor>=3.1,<4"],
        # What PerfZero's driver imports; of grpcio-status later versions need a protobuf that TensorFlow does
        # not take.
        "perfzero": ["psutil>=5.9,<8", "google-cloud-bigquery>=3.20,<4", "grpcio-status<1.63"],
        "dev": ["pytest>=8,<10", "pytest-xdist>=3.6,<4", "hypothesis>=6.100,<7"],
    },
)
