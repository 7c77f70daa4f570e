"""Two hundred megabytes of real English prose, assembled from available sources, for jobs that read text.

No text is repeated. The kinds are interleaved in proportion to their size, so that any initial part of the file has the
same composition as the whole, and the number of distinct words grows with length as in any real text.
"""

from __future__ import annotations

import csv
import gzip
import heapq
import json
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

from surroundings import data_folder

_WHOLE = 200_010_000
_PASSAGE = 12_000
_SHORTEST = 200
_DOCSTRING = re.compile(r'"""(.*?)"""', re.DOTALL)
_PARAGRAPH_END = re.compile(r"\n\s*\n")


def write_mixed_text(path: Path, num_bytes: int) -> str:
    """Write real English of about `num_bytes` bytes, one paragraph per line, an empty line after each document.

    The pool is all prose, filled up to 200 MB with documentation; a smaller file holds a part of each kind. Return a
    description of the contents. Raises SystemExit when less text than requested is available.
    """
    prose = {
        "English Wikipedia": list(_wikipedia()),
        "novels": list(_novels()),
        "film reviews (IMDB)": list(_reviews()),
        "passages of question answering and choice sets": list(_passages()),
    }
    room = _WHOLE - sum(len(text.encode()) + 2 for texts in prose.values() for text in texts)
    kinds = {**prose, "documentation of installed Python packages": list(_limited(_documentation(), room))}
    sizes = {kind: sum(len(text.encode()) + 2 for text in texts) for kind, texts in kinds.items()}
    if sum(sizes.values()) < num_bytes:
        raise SystemExit(f"only {sum(sizes.values()) / 1e6:.0f} MB of text are at hand in {data_folder()}")
    left, used = num_bytes, dict.fromkeys(kinds, 0)
    with path.open("wb") as file:
        streams = [_placed(kind, texts, sizes[kind]) for kind, texts in kinds.items()]
        for _, kind, text in heapq.merge(*streams):
            content = text.encode() + b"\n\n"
            if len(content) > left:
                break
            file.write(content)
            left -= len(content)
            used[kind] += len(content)
    parts = ", ".join(f"{kind} {size / 1e6:.1f} MB" for kind, size in used.items())
    return f"{(num_bytes - left) / 1e6:.1f} MB of real English, sources interleaved: {parts}"


def _limited(texts: Iterator[str], num_bytes: int) -> Iterator[str]:
    for text in texts:
        num_bytes -= len(text.encode()) + 2
        if num_bytes < 0:
            return
        yield text


def _placed(kind: str, texts: list[str], size: int) -> Iterator[tuple[float, str, str]]:
    """Yield the texts of a kind with sort keys that spread them evenly over the file."""
    place = 0
    for text in texts:
        yield place / size, kind, text
        place += len(text.encode()) + 2


def _opened(path: Path) -> str:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return content.decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def _wikipedia() -> Iterator[str]:
    for article in _opened(data_folder() / "corpus" / "enwiki_part.txt.gz").split("\n\n"):
        if article.strip():
            yield article.strip()


def _novels() -> Iterator[str]:
    """Yield passages of whole paragraphs, each paragraph joined into one line."""
    for path in sorted((data_folder() / "corpus" / "novels").iterdir()):
        passage: list[str] = []
        size = 0
        for paragraph in _PARAGRAPH_END.split(_opened(path)):
            line = " ".join(paragraph.split())
            if line:
                passage.append(line)
                size += len(line)
            if size > _PASSAGE:
                yield "\n".join(passage)
                passage, size = [], 0
        if passage:
            yield "\n".join(passage)


def _reviews() -> Iterator[str]:
    seen: set[str] = set()
    for name in ("train", "test"):
        for line in _opened(data_folder() / "imdb" / f"{name}.jsonl.gz").splitlines():
            text = " ".join(json.loads(line)["text"].split())
            if text not in seen:
                seen.add(text)
                yield text


def _passages() -> Iterator[str]:
    """Yield each context once: SQuAD-like files with their questions, HellaSwag with its endings, CosmosQA."""
    seen: set[str] = set()
    for text in _contexts():
        line = " ".join(text.split())
        if line and line not in seen:
            seen.add(line)
            yield line


def _contexts() -> Iterator[str]:
    folder = data_folder()
    for path in sorted((folder / "qa").rglob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if "data" in content:
            for article in content["data"]:
                for paragraph in article["paragraphs"]:
                    yield paragraph["context"]
                    yield " ".join(row["question"] for row in paragraph["qas"])
    with (folder / "choice" / "hellaswag" / "val.jsonl").open(encoding="utf-8") as file:
        for row in map(json.loads, file):
            yield " ".join([row["ctx"], *row["endings"]])
    with (folder / "choice" / "cosmosqa_valid.csv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            yield row["context"]


def _documentation() -> Iterator[str]:
    """Yield docstrings and documentation pages of at least 200 characters, each once."""
    seen: set[str] = set()
    for place in ("stdlib", "purelib"):
        root = Path(sysconfig.get_paths()[place])
        for path in sorted(root.rglob("*")):
            is_page = path.name == "METADATA" or path.suffix in (".rst", ".md")
            if (path.suffix != ".py" and not is_page) or (place == "stdlib" and "site-packages" in path.parts):
                continue
            content = path.read_text(encoding="utf-8", errors="ignore").replace("\0", "")
            for text in [content] if is_page else _DOCSTRING.findall(content):
                lines = "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())
                if len(lines) >= _SHORTEST and lines not in seen:
                    seen.add(lines)
                    yield lines
