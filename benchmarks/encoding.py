"""Time WordPiece encoding of a corpus in turn with `encode_batch` of tokenizers, which uses two threads.

Ours is the `SentenceEncoder` of corpus building, in one thread. It is new in every round and encodes each distinct word
once. The peer receives a thousand lines at a time, and its ids are read as lists. A first check ensures that both
produce the same ids. The sides alternate in one process.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

os.environ["RAYON_NUM_THREADS"] = "2"
os.environ["TOKENIZERS_PARALLELISM"] = "true"

import numpy as np
import tokenizers
from real_text import write_mixed_text
from rounds import MIN_ROUNDS, in_turn, order_said, quiet_load, reached
from surroundings import minilm_folder, processor, write_results

from maskloom.data.corpus.documents import read_documents
from maskloom.data.corpus.sentence_encoding import SentenceEncoder
from maskloom.text.normalization import is_agreed
from maskloom.text.tokenizer import Tokenizer

BATCH = 1000
AIMS = (2, 4, 8)
CHECKED_LINES = 20_000


def encode_ours(tokenizer: Tokenizer, documents: list[bytes]) -> int:
    """Encode all documents, part by part; return the number of tokens."""
    encoder = SentenceEncoder(tokenizer, sentences="lines")
    return sum(int(part.sentence_lengths.sum()) for part in encoder.parts(list(documents)))


def encode_peer(encode: Callable[..., list[Any]], lines: list[str]) -> int:
    """Encode all lines, a thousand at a time; return the number of tokens."""
    total = 0
    for start in range(0, len(lines), BATCH):
        ids = [each.ids for each in encode(lines[start : start + BATCH], add_special_tokens=False)]
        total += sum(map(len, ids))
    return total


def check(tokenizer: Tokenizer, library: tokenizers.Tokenizer, lines: list[str]) -> int:
    """Compare ids line by line; return how many lines differ, which all hold characters that differ by design."""
    texts = [line for line in lines[:CHECKED_LINES] if line.strip()]
    parts = list(SentenceEncoder(tokenizer, sentences="lines").parts([text.encode("utf-8") for text in texts]))
    ends = np.cumsum(np.concatenate([part.sentence_lengths for part in parts]))[:-1]
    dtype = np.uint16 if len(tokenizer.vocabulary) <= 1 << 16 else np.uint32
    ours = np.split(np.frombuffer(b"".join(part.tokens for part in parts), dtype), ends)
    theirs = [each.ids for each in library.encode_batch(texts, add_special_tokens=False)]
    theirs = [ids for ids in theirs if ids]
    assert len(ours) == len(theirs), "not the same sentences"
    kept = [text for text in texts if tokenizer.token_ids(text)]
    different = [text for text, a, b in zip(kept, ours, theirs, strict=True) if a.tolist() != b]
    assert all(not is_agreed(text) for text in different), "ids differ on text that both cut by the same rules"
    return len(different)


def measure(sides: dict[str, Callable[[], int]], num_rounds: int) -> dict[str, dict[str, list[float]]]:
    """Run all sides in turn; return wall-clock seconds, processor seconds and numbers of tokens."""
    found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "processor": [], "tokens": []} for name in sides}
    for number in range(num_rounds):
        for name, run in in_turn(list(sides.items()), number):
            start, used = time.perf_counter(), time.process_time()
            tokens = run()
            costs = time.perf_counter() - start, time.process_time() - used, tokens
            for kind, value in zip(found[name].values(), costs, strict=True):
                kind.append(value)
            print(f"{name}: {costs[0]:.2f} s, {costs[1]:.2f} s of processors, {tokens:,} tokens", flush=True)
    return found


def summarised(found: dict[str, dict[str, list[float]]], megabytes: float) -> list[dict[str, Any]]:
    """Return the medians of each side and the ratios of its rounds to ours."""
    ours, rows = found["maskloom"], []
    for name, costs in found.items():
        row: dict[str, Any] = {
            "side": name,
            "seconds": statistics.median(costs["seconds"]),
            "processor": statistics.median(costs["processor"]),
            "tokens": costs["tokens"][0],
        }
        row["megabytes_per_second"] = megabytes / row["seconds"]
        if name != "maskloom":
            by_clock = [a / b for a, b in zip(costs["seconds"], ours["seconds"], strict=True)]
            used = [a / b for a, b in zip(costs["processor"], ours["processor"], strict=True)]
            row |= {"ratio": statistics.median(by_clock), "lowest": min(by_clock), "highest": max(by_clock)}
            row["by_processor_time"] = statistics.median(used)
        rows.append(row)
    return rows


def report(result: dict[str, Any]) -> str:
    """Return the Markdown page."""
    lines = [
        "# WordPiece encoding of a corpus: maskloom against tokenizers",
        "",
        f"Generated by `{result['command']}`; do not edit.",
        "",
        f"- Machine: {result['machine']}; {result['versions']}. Load before the start, from other programs: "
        f"{result['load']:.1f}.",
        f"- Text: {result['text']}. Uncased vocabulary of 30,522 pieces; no special tokens, nothing truncated.",
        "- Ours is the encoder of corpus building in one thread, with an empty cache of words at the start of each "
        f"round; the peer has two threads and gets {BATCH:,} lines at a time, and its ids are read as lists. Medians "
        f"of {order_said(result['rounds'])}",
        f"- Both give the same ids for the first {CHECKED_LINES:,} lines, except {result['num_different']} with "
        "characters that the library and Google's released rules treat differently; ours follows the latter.",
        "",
        "| side | threads | seconds | processor seconds | MB/s | peer / ours | range | by processor time "
        "| reached (floor / target / stretch) |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in result["sides"]:
        ratio = "1 | - | - | -"
        if "ratio" in row:
            span = f"{row['lowest']:.1f}-{row['highest']:.1f}"
            ratio = f"**{row['ratio']:.1f}** | {span} | {row['by_processor_time']:.1f} | "
            ratio += reached(row["lowest"], AIMS)
        threads = 1 if row["side"] == "maskloom" else 2
        lines.append(
            f"| {row['side']} | {threads} | {row['seconds']:.2f} | {row['processor']:.2f} | "
            f"{row['megabytes_per_second']:.1f} | {ratio} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=float, default=40.0)
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    load = quiet_load()
    tokenizer = replace(Tokenizer.load(minilm_folder()), compatibility="google")
    library = tokenizers.Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "text.txt"
        text = write_mixed_text(path, int(options.megabytes * 1e6))
        texts = [document.text for document in read_documents(path)]
    documents = [document.encode() for document in texts]
    lines = [line for document in texts for line in document.split("\n")]
    num_different = check(tokenizer, library, lines)
    sides: dict[str, Callable[[], int]] = {
        "maskloom": lambda: encode_ours(tokenizer, documents),
        "tokenizers, encode_batch": lambda: encode_peer(library.encode_batch, lines),
        "tokenizers, encode_batch_fast": lambda: encode_peer(library.encode_batch_fast, lines),
    }
    found = measure(sides, options.rounds)
    result = {
        "command": " ".join(["python benchmarks/encoding.py", *sys.argv[1:]]),
        "machine": f"{processor()}; Python {platform.python_version()}",
        "versions": ", ".join(f"{name} {metadata.version(name)}" for name in ("tokenizers", "numpy")),
        "load": load,
        "text": text,
        "rounds": options.rounds,
        "num_different": num_different,
        "aims": AIMS,
        "sides": summarised(found, sum(map(len, documents)) / 1e6),
    }
    result["summary"] = [
        {
            "job": "text to token ids, 1 thread",
            "beside": f"{row['side']}, 2 threads",
            "result": f"{row['ratio']:.1f} times the bytes per second",
        }
        for row in result["sides"]
        if "ratio" in row
    ]
    write_results(options.out, result, report(result))
    print(report(result))


if __name__ == "__main__":
    main()
