"""SQuAD's JSON as rows of questions, unchecked but for the frame around them."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from maskloom.errors import DataError
from maskloom.foreign_files import parse_json, read_bytes
from maskloom.tasks.tables import Row

MAX_JSON_BYTES = 1 << 30
"""1 GiB: twenty times SQuAD v2.0; larger data goes into JSONL, which is read row by row."""


def squad_rows(path: Path) -> Iterator[Row]:
    """Yield the questions of a SQuAD v1.1 or v2.0 file, .json or .json.gz, in its order, with context and title.

    Raises DataError, with file and place, for a file that cannot be read or has not the frame of articles, paragraphs
    and questions.
    """
    document = read_json(path)
    articles = _list_of(document, "data", path, "the file")
    number = 0
    for article_number, article in enumerate(articles, start=1):
        title = article.get("title") if isinstance(article, dict) else None
        title = title if isinstance(title, str) else None
        article_place = f"article {article_number}" + (f" ({title:.80})" if title else "")
        paragraphs = _list_of(article, "paragraphs", path, article_place)
        for paragraph_number, paragraph in enumerate(paragraphs, start=1):
            place = f"{article_place}, paragraph {paragraph_number}"
            for question_number, question in enumerate(_list_of(paragraph, "qas", path, place), start=1):
                number += 1
                yield _row(question, paragraph.get("context"), title, f"{place}, question {question_number}", number)


def _row(question: Any, context: Any, title: str | None, place: str, number: int) -> Row:
    if not isinstance(question, dict):
        return Row({}, number, f"a question is not an object: it is {type(question).__name__}", place)
    identifier = question.get("id")
    if identifier is None:
        return Row({}, number, "no id", place)
    return Row({**question, "context": context, "title": title}, number, place=f"{place} (id {identifier!r:.80})")


def read_json(path: Path) -> Any:
    """Return the value of a JSON file, .json or .json.gz; raises DataError with line and column for what is not.

    A file is at most 1 GiB large, and a packed one unpacks to at most 50 times its size, or to 8 MiB.
    """
    content = read_bytes(path, limit=MAX_JSON_BYTES)
    if path.suffix.lower() == ".gz":
        limit = min(MAX_JSON_BYTES, max(50 * len(content), 8 << 20))
        try:
            with gzip.open(io.BytesIO(content)) as file:
                content = file.read(limit + 1)
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise DataError(f"{path}: the gzip stream is broken: {error}") from None
        if len(content) > limit:
            raise DataError(f"{path}: unpacks to more than {limit:,} bytes, which is more than such text does")
    return parse_json(content, str(path))


def _list_of(value: Any, key: str, path: Path, place: str) -> list[Any]:
    if not isinstance(value, dict):
        raise DataError(f"{path}: {place}: a JSON object is expected, this is {type(value).__name__}")
    if key not in value:
        known = ", ".join(name[:40] for name in list(value)[:8]) or "none"
        raise DataError(f"{path}: {place}: the key {key!r:.80} is missing (keys: {known}); SQuAD's form is expected")
    if not isinstance(value[key], list):
        raise DataError(f"{path}: {place}: {key!r:.80} is not a list but {type(value[key]).__name__}")
    return value[key]
