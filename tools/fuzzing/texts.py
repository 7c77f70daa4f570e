"""Random text with all kinds of characters, and Google's tokenizer as the reference for ids."""

from __future__ import annotations

import functools
import importlib
import random
import sys
from types import SimpleNamespace
from typing import Any
from unittest import mock

_RANGES = (
    *((0x20, 0x7E), (0x20, 0x7E), (0, 0x1F), (0x7F, 0x24F), (0x300, 0x36F), (0x370, 0x52F), (0x590, 0x6FF)),
    *((0x900, 0xDFF), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2E80, 0x4DBF), (0x4E00, 0x9FFF)),
    *((0xAC00, 0xD7A3), (0xD800, 0xDFFF), (0xE000, 0xF8FF), (0xFB00, 0xFFFF), (0x10000, 0x1FFFF)),
    *((0x20000, 0x323AF), (0xE0000, 0x10FFFF)),
)
_PARTS = (
    *("the", "unaffable", "İ", "ß", "ﬁ", "ΣΣ.", "\ufffd", "\0", "\u200d", "[MASK]", "##ing"),
    *("e\u0301\u0327", "中", " "),
)


def random_text(draw: random.Random) -> str:
    """Return a short text: runs of characters from one range, words, white space; occasionally lone surrogates."""
    parts = []
    for _ in range(draw.randint(0, 8)):
        if draw.random() < 0.3:
            parts.append(draw.choice(_PARTS))
            continue
        first, last = draw.choice(_RANGES)
        parts.append("".join(chr(draw.randint(first, last)) for _ in range(draw.randint(1, 6))))
        parts.append(draw.choice(("", "", " ", "\t", "\u00a0", "\n")))
    return "".join(parts)


def problem_of(ours: Any, theirs: Any, texts: list[str]) -> str | None:
    """Return the first problem with the tokenisation of texts, or None if there is none.

    Ids must be Google's; a batch must match its texts encoded separately; words and offsets must match the rules in
    plain Python; offsets must lie in the text and ascend by word; and decoding raises nothing.
    """
    together = ours.encode_batch([(text, None) for text in texts])
    ids = ours.token_ids_batch(texts)
    for text, encoding, found in zip(texts, together, ids, strict=True):
        if found != theirs.convert_tokens_to_ids(theirs.tokenize(text)):
            return f"{text!r}: {found} is not what Google's rule gives"
        if encoding != ours.encode(text) or encoding.ids[1:-1] != found[: ours.max_length - 2]:
            return f"{text!r}: alone it gives other ids than in a batch"
        rule, num_kept = ours._pieces_by_rules(text), len(encoding.ids) - 2
        if (encoding.words[1:-1], encoding.offsets[1:-1]) != (rule.words[:num_kept], rule.offsets[:num_kept]):
            return f"{text!r}: its words or offsets are not those of the rule in plain Python"
        offsets = encoding.offsets[1:-1]
        if any(not 0 <= start < end <= len(text) for start, end in offsets):
            return f"{text!r}: offsets {offsets} do not lie in it"
        starts = {}
        for word, (start, _end) in zip(encoding.words[1:-1], offsets, strict=True):
            starts.setdefault(word, start)
        if list(starts.values()) != sorted(starts.values()):
            return f"{text!r}: words do not ascend: {offsets}"
        ours.decode(found)
    return None


def google_modules() -> SimpleNamespace:
    """Return Google's modules, imported with mocks of TensorFlow, which they need for flags, files and networks.

    Raises ImportError when the oracle package bert-tensorflow is not installed.
    """
    importlib.import_module("bert")
    names = ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1", "absl", "absl.flags", "six")
    stand_ins = {name: mock.MagicMock() for name in (*names, "bert.modeling", "bert.optimization")}
    tf = stand_ins["tensorflow.compat.v1"]
    stand_ins["tensorflow"].compat = stand_ins["tensorflow.compat"]
    stand_ins["tensorflow.compat"].v1 = tf
    tf.gfile.GFile = functools.partial(open, encoding="utf-8", newline="\n")
    stand_ins["six"].PY2, stand_ins["six"].PY3 = False, True
    stand_ins["absl"].flags.FLAGS.preserve_unused_tokens = False
    # sys.modules is restored afterwards, so that other libraries do not mistake the mocks for TensorFlow
    with mock.patch.dict(sys.modules, stand_ins):
        found = {name: importlib.import_module(f"bert.{name}") for name in ("tokenization", "run_classifier")}
    return SimpleNamespace(**found)
