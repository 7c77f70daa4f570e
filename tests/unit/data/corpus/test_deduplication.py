"""The digest set compared with Python's `set`."""

import hashlib
import random

from maskloom.data.corpus.building import DigestSet


def test_it_answers_like_a_set_through_many_doublings() -> None:
    rng = random.Random(5)
    digests = [rng.randbytes(16) for _ in range(20_000)]
    drawn = digests + rng.choices(digests, k=5_000)
    rng.shuffle(drawn)
    ours, theirs = DigestSet(), set()
    for digest in drawn:
        assert ours.add(digest) == (digest not in theirs)
        theirs.add(digest)
    assert len(ours) == len(theirs) == 20_000


def test_collisions_of_the_first_bytes_are_told_apart() -> None:
    digests = [b"\xff" * 8 + index.to_bytes(8, "big") for index in range(300)]
    found = DigestSet()
    assert all(found.add(digest) for digest in digests)
    assert not any(found.add(digest) for digest in digests)


def test_memory_of_a_document_is_as_stated() -> None:
    found = DigestSet()
    for number in range(10_000):
        found.add(hashlib.blake2b(str(number).encode(), digest_size=16).digest())
        if number > 3_000:
            assert 26 < len(found._table) / len(found) < 54
