import json
import struct

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from maskloom.checkpoints.tensor_files import open_weights
from maskloom.errors import DataError


def write_header(path, header, data=b"", length=None):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)


LYING_HEADERS = [
    {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 800]}},
    {"a": {"dtype": "F32", "shape": [2**40, 2**40], "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}},
    {"a": {"dtype": "F99", "shape": [2], "data_offsets": [0, 8]}},
    {"a": {"dtype": "F32", "shape": [2]}},
    {"a": 3},
    [],
]


@pytest.mark.parametrize("header", LYING_HEADERS)
def test_lying_headers_are_refused_with_the_file_named(tmp_path, header):
    write_header(tmp_path / "model.safetensors", header, b"\0" * 8)
    with pytest.raises(DataError, match=r"model.safetensors: not a valid safetensors file"):
        open_weights(tmp_path)


@pytest.mark.parametrize("content", [b"", b"\0", b"\xff" * 8, struct.pack("<Q", 2**62) + b"{}", b"PK\x03\x04abcd"])
def test_files_that_are_no_safetensors(tmp_path, content):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(DataError, match="not a valid safetensors file"):
        open_weights(tmp_path)


def test_a_file_cut_short(tmp_path):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(100.0)}, path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="not a valid safetensors file"):
        open_weights(tmp_path)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_flipped_byte_never_ends_in_a_traceback(tmp_path, data):
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(4.0), "b": torch.ones(2, 3)}, path)
    content = bytearray(path.read_bytes())
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(content[: data.draw(st.integers(0, len(content)))]))
    try:
        for tensor in open_weights(tmp_path).values():
            tensor.read()
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"a": "../x.safetensors"}}, "is not the name of a safetensors file in the same folder"),
        ({"weight_map": {"a": "x.bin"}}, "is not the name of a safetensors file"),
        ({"weight_map": {"a": "y.safetensors"}}, "y.safetensors: does not exist"),
        ({"weight_map": {"a": 3}}, "no weight_map"),
        ({}, "no weight_map"),
        ([], "expected a JSON object"),
        ({"weight_map": {"a": "x.safetensors", "b": "x.safetensors"}}, "1 tensor that no file holds, such as 'b'"),
        ({"weight_map": {"b": "x.safetensors"}}, "tensor 'a' is in x.safetensors, but the index says None"),
    ],
)
def test_indexes_that_lie(tmp_path, index, message):
    save_file({"a": torch.zeros(1)}, tmp_path / "x.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(DataError, match=message):
        open_weights(tmp_path)
