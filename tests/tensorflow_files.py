"""TensorFlow 1 checkpoints written by hand from the format's description, without any code of maskloom."""

import re
import struct
from pathlib import Path

import numpy as np

DTYPES = {"float32": 1, "float64": 2, "int32": 3, "int64": 9, "float16": 19}


def tensorflow_name(name):
    """Return the name in the published BERT code of a name in the Hugging Face layout."""
    module, _, end = name.rpartition(".")
    outputs = {"classifier": "", "qa_outputs": "cls/squad/", "cls.seq_relationship": "cls/seq_relationship/"}
    if module in outputs:
        return f"{outputs[module]}output_{'weights' if end == 'weight' else end}"
    if name == "cls.predictions.bias":
        return "cls/predictions/output_bias"
    module = re.sub(r"layer\.(\d+)", r"layer_\1", module).replace(".", "/")
    if module.endswith("_embeddings"):
        return module
    ends = {"weight": "gamma", "bias": "beta"} if module.endswith("LayerNorm") else {"weight": "kernel", "bias": "bias"}
    return f"{module}/{ends[end]}"


def crc32c(data):
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def masked_crc(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def varint(value):
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def number(field, value):
    return varint(field << 3) + varint(value)


def message(field, content):
    return varint(field << 3 | 2) + varint(len(content)) + content


def block(entries, interval=16):
    out, restarts, last = bytearray(), [], b""
    for count, (key, value) in enumerate(entries):
        shared = 0
        if count % interval == 0:
            restarts.append(len(out))
        else:
            while shared < min(len(key), len(last)) and key[shared] == last[shared]:
                shared += 1
        out += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    restarts = restarts or [0]
    return bytes(out) + struct.pack(f"<{len(restarts) + 1}I", *restarts, len(restarts))


def table(entries, *, compress=False, entries_a_block=7):
    """Return the bytes of a sorted table of (key, value) pairs."""
    out, index = bytearray(), []

    def put(content):
        content += bytes([compress])  # 1 means Snappy
        handle = varint(len(out)) + varint(len(content) - 1)
        out.extend(content + struct.pack("<I", masked_crc(content)))
        return handle

    for start in range(0, len(entries), entries_a_block):
        part = entries[start : start + entries_a_block]
        index.append((part[-1][0], put(block(part))))
    handles = put(block([])) + put(block(index, interval=1))
    return bytes(out) + handles.ljust(40, b"\0") + struct.pack("<Q", 0xDB4775248B80FB57)


def header(num_shards, *, endianness=0, min_consumer=0):
    version = number(1, 1) + (number(2, min_consumer) if min_consumer else b"")
    return number(1, num_shards) + (number(2, endianness) if endianness else b"") + message(3, version)


def entry(array, shard, offset, content):
    shape = b"".join(message(2, number(1, size)) for size in array.shape)
    out = number(1, DTYPES[str(array.dtype)]) + message(2, shape)
    out += number(3, shard) if shard else b""
    out += number(4, offset) if offset else b""
    return out + number(5, len(content)) + varint(6 << 3 | 5) + struct.pack("<I", masked_crc(content))


def write_checkpoint(prefix, variables, *, num_shards=1, entries=None):
    """Write PREFIX.index and its shards; `entries` adds raw entries to the index."""
    shards = [bytearray() for _ in range(num_shards)]
    found = {b"": header(num_shards)}
    for place, (name, array) in enumerate(sorted(variables.items())):
        shard, content = place % num_shards, np.ascontiguousarray(array).tobytes()
        found[name.encode()] = entry(np.asarray(array), shard, len(shards[shard]), content)
        shards[shard] += content
    found |= entries or {}
    prefix = Path(prefix)
    prefix.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{prefix}.index").write_bytes(table(sorted(found.items())))
    for number_, content in enumerate(shards):
        Path(f"{prefix}.data-{number_:05d}-of-{num_shards:05d}").write_bytes(content)
