"""Shards on disk, read together as one array."""

import os
from pathlib import Path

import numpy as np
import pytest

from maskloom.data.corpus import shards
from maskloom.data.corpus.sentence_encoding import EncodedDocuments
from maskloom.data.corpus.shards import TokenShards, finished_shard, map_lengths, write_shard


def encoded(documents: list[list[int]]) -> EncodedDocuments:
    """Return documents given by the token counts of their sentences; token ids count up from 0."""
    lengths = np.array([length for document in documents for length in document], dtype="<i4")
    return EncodedDocuments(
        tokens=np.arange(lengths.sum(), dtype="<u2").tobytes(),
        sentence_lengths=lengths,
        document_lengths=np.array([len(document) for document in documents], dtype="<i4"),
        num_empty_sentences=2,
        num_empty_documents=1,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("shards", "building"):
        (tmp_path / name).mkdir()
    return tmp_path


def test_a_written_shard_is_found_again_from_the_same_input_only(folder: Path) -> None:
    record = write_shard(folder, 3, "made from this", [encoded([[4, 1], [2]])])
    assert (record.num_documents, record.num_sentences, record.num_tokens, record.num_bytes) == (2, 3, 7, 14)
    assert (record.num_empty_sentences, record.num_empty_documents) == (2, 1)
    assert finished_shard(folder, 3, "made from this") == record
    assert finished_shard(folder, 3, "made from that") is None
    assert finished_shard(folder, 4, "made from this") is None
    assert [lengths.tolist() for lengths in map_lengths(folder, record)] == [[4, 1, 2], [2, 1]]
    os.truncate(folder / "building" / "00003.lengths", 16)
    with pytest.raises(OSError, match=r"00003\.lengths: was truncated; run the same build again"):
        map_lengths(folder, record)


@pytest.mark.parametrize("name", ["shards/00003.tokens", "building/00003.lengths", "building/00003.json"])
def test_no_damage_is_taken_for_a_finished_shard(folder: Path, name: str) -> None:
    write_shard(folder, 3, "input", [encoded([[4, 1], [2]])])
    whole = (folder / name).read_bytes()
    for length in range(0, len(whole), 3):
        (folder / name).write_bytes(whole[:length])
        assert finished_shard(folder, 3, "input") is None
    for bit in range(0, 8 * len(whole), 5):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(bytes(changed))
        assert finished_shard(folder, 3, "input") is None


def test_a_record_under_another_number_is_not_taken(folder: Path) -> None:
    write_shard(folder, 3, "input", [encoded([[4]])])
    for parent, suffix in (("shards", "tokens"), ("building", "lengths"), ("building", "json")):
        (folder / parent / f"00003.{suffix}").rename(folder / parent / f"00005.{suffix}")
    assert finished_shard(folder, 5, "input") is None


def test_many_shards_read_as_one_array(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "_MAX_OPEN_SHARDS", 2)
    sizes = [5, 1, 7, 3]
    everything = np.arange(sum(sizes), dtype="<u2")
    for number, part in enumerate(np.split(everything, np.cumsum(sizes)[:-1])):
        part.tofile(folder / "shards" / f"{number:05d}.tokens")
    paths = [folder / "shards" / f"{number:05d}.tokens" for number in range(len(sizes))]
    tokens = TokenShards(paths, sizes, np.dtype("<u2"))
    for first in range(17):
        for last in range(17):
            assert tokens.slice(first, last).tolist() == everything[first:last].tolist()
        assert tokens.shard.cache_info().currsize <= 2
    assert not tokens.slice(6, 9).flags.writeable
