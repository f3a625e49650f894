"""What processors can, by their instructions."""

import pytest

from official.io.native_library import Processor, saturates_int8


@pytest.mark.parametrize(
    "instructions,saturates",
    [
        (("avx2", "fma"), True),
        (("avx2", "avx512f"), True),
        (("avx2", "avx_vnni"), False),
        (("avx2", "avx512f", "avx512_vnni"), False),
        (("asimd", "i8mm"), False),
        ((), False),  # unknown
    ],
)
def test_which_processors_add_products_of_bytes_in_16_bits(instructions, saturates):
    assert saturates_int8(Processor("some", 2, instructions)) == saturates
