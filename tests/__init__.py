"""Tests of the packages, in folders of the same names."""

import official  # noqa: F401  # before TensorFlow: it sets what TensorFlow reads when it is imported
