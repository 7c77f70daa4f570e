import random

import pytest
from tests.tensorflow_files import crc32c as bit_by_bit
from tests.tensorflow_files import masked_crc

from maskloom.checkpoints.crc32c import crc32c, masked


def test_published_values():
    # RFC 3720, B.4
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(bytes([255] * 32)) == 0x62A8AB43
    assert crc32c(b"") == 0


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 511, 4097, 70_001])
def test_any_number_of_lanes_gives_what_bit_by_bit_gives(size):
    data = random.Random(size).randbytes(size)
    assert crc32c(data) == bit_by_bit(data)
    assert masked(crc32c(data)) == masked_crc(data)


def test_blocks_are_joined(monkeypatch):
    monkeypatch.setattr("maskloom.checkpoints.crc32c._LANES", 2)
    data = random.Random(0).randbytes(3_001)
    assert crc32c(data) == bit_by_bit(data)
