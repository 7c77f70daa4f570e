"""TFRecord files byte by byte: known sums, and messages that were taken apart by hand."""

import struct

import pytest

from maskloom.data.google_instances import crc32c, example, masked_crc32c, record


def test_sums_are_those_of_the_standard() -> None:
    # RFC 3720, B.4, and the check value of the catalogues
    assert crc32c(b"") == 0
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E


def test_a_record_holds_length_message_and_both_masked_sums() -> None:
    framed = record(b"123456789")
    length, of_length = struct.unpack("<QI", framed[:12])
    assert (length, framed[12:-4]) == (9, b"123456789")
    rotated = (0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF
    assert struct.unpack("<I", framed[-4:])[0] == (rotated + 0xA282EAD8) % 2**32
    assert of_length == masked_crc32c(struct.pack("<Q", 9))


@pytest.mark.parametrize(
    ("values", "feature"),
    [
        ([1], "1a03 0a01 01"),
        ([0, 127, 128, 300], "1a08 0a06 00 7f 8001 ac02"),
        ([-1], "1a0c 0a0a ffffffffffffffffff01"),
        ([1.0, 0.0], "120a 0a08 0000803f 00000000"),
    ],
)
def test_an_example_is_protocol_buffers_wire_format(values: list[float], feature: str) -> None:
    content = bytes.fromhex(feature)
    # the key "a" in field 1, the feature in field 2, of an entry in field 1 of Features in field 1 of Example
    entry = bytes.fromhex("0a01 61 12") + bytes([len(content)]) + content
    features = b"\x0a" + bytes([len(entry)]) + entry
    assert example({"a": values}) == b"\x0a" + bytes([len(features)]) + features
