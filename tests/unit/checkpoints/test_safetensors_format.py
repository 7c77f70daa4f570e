"""False headers are refused before memory is allocated for what they declare."""

import json
import tracemalloc

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import save_file

from maskloom.checkpoints.safetensors_format import MAX_TENSORS, read_header
from maskloom.errors import DataError
from tools.fuzzing.headers import lying_files

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool]


def test_headers_that_lie_are_refused_with_little_memory(tmp_path):
    path, wrong = tmp_path / "model.safetensors", []
    for name, content in lying_files():
        path.write_bytes(content)
        tracemalloc.start()
        try:
            read_header(path)
            wrong.append(f"{name}: accepted")
        except DataError as error:
            if "model.safetensors: not a valid safetensors file: " not in str(error) or len(str(error)) > 1000:
                wrong.append(f"{name}: {error}")
        finally:
            if (peak := tracemalloc.get_traced_memory()[1]) > 100e6:
                wrong.append(f"{name}: {peak:,} bytes")
            tracemalloc.stop()
    assert not wrong


@given(
    shapes=st.lists(st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(1, 4), max_size=4)), min_size=1, max_size=5)
)
@settings(max_examples=40, deadline=None)
def test_what_the_library_writes_is_read_as_the_library_reads_it(tmp_path_factory, shapes):
    path = tmp_path_factory.mktemp("header") / "model.safetensors"
    save_file({f"t{n}": torch.zeros(shape, dtype=dtype) for n, (dtype, shape) in enumerate(shapes)}, path, {"a": "{b"})
    found = read_header(path)
    with safe_open(path, framework="pt") as file:
        expected = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        assert found.keys() == expected.keys()
        for name, entry in found.items():
            assert (entry.dtype, list(entry.shape)) == (expected[name].get_dtype(), expected[name].get_shape())


def test_as_many_tensors_as_allowed_are_read(tmp_path):
    names = [f"bert.encoder.layer.{number}.attention.self.query.weight" for number in range(MAX_TENSORS)]
    entries = {name: {"dtype": "U8", "shape": [1, 1], "data_offsets": [n, n + 1]} for n, name in enumerate(names)}
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes(MAX_TENSORS))
    assert list(read_header(path)) == names
