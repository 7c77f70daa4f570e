"""The check that a submission would pass at GLUE's gate: names, headers, indices, lengths, words."""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from pathlib import Path

from maskloom.errors import DataError
from maskloom.foreign_files import check_regular
from maskloom.runs.glue.files import SUBMISSION, SubmissionFile

HEADER = "index\tprediction"
# The longest of the files takes ten.
_MAX_FILE_BYTES = 64 << 20
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")


def check_submission(path: str | Path, *, allow_partial: bool = False) -> list[str]:
    """Return what is wrong with a zip, one line a problem, at most one for each row rule of a file; [] is sound.

    With `allow_partial` files may be absent; what is there must still be whole. Raises DataError for a file that is
    not there or not a zip.
    """
    path = Path(path)
    check_regular(path)
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, struct.error) as error:
        raise DataError(f"{path}: not a zip file: {error}") from None
    with archive:
        return problems_of(archive, allow_partial=allow_partial)


def problems_of(archive: zipfile.ZipFile, *, allow_partial: bool = False) -> list[str]:
    """Return what `check_submission` does, of a zip that is open."""
    problems = _name_problems(archive.namelist(), allow_partial=allow_partial)
    for file in SUBMISSION:
        if archive.namelist().count(file.name) == 1:
            problems += [f"{file.name}: {problem}" for problem in _file_problems(archive, file)]
    return problems


def _name_problems(names: list[str], *, allow_partial: bool) -> list[str]:
    known = {file.name for file in SUBMISSION}
    problems = []
    for name in dict.fromkeys(names):
        if "/" in name:
            problems.append(f"{name}: is in a folder; the zip must be flat")
        elif name not in known:
            near = next((other for other in known if other.lower() == name.lower()), None)
            problems.append(f"{name}: not a file of a submission" + (f"; did you mean {near}?" if near else ""))
        elif names.count(name) > 1:
            problems.append(f"{name}: stands {names.count(name)} times in the zip")
    absent = sorted(known - set(names))
    if absent and not allow_partial:
        problems.append(f"absent: {', '.join(absent)} (--allow-partial accepts a zip without them)")
    if not known & set(names):
        problems.append("none of the files of a submission is there")
    return problems


def _file_problems(archive: zipfile.ZipFile, file: SubmissionFile) -> list[str]:
    """Return the problems of one file; of each kind only the first row is named."""
    try:
        with archive.open(file.name) as packed:
            content = packed.read(_MAX_FILE_BYTES + 1)
        if len(content) > _MAX_FILE_BYTES:
            return [f"unpacks to more than {_MAX_FILE_BYTES:,} bytes"]
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        return [f"byte {error.start} is not UTF-8"]
    except (zipfile.BadZipFile, zlib.error, OSError, RuntimeError, NotImplementedError, EOFError, ValueError) as error:
        return [f"cannot be unpacked: {error}"]
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    if not lines:
        return ["is empty"]
    found: dict[str, str] = {}
    if lines[0].removesuffix("\r") != HEADER:
        found["header"] = f"line 1: the header is {lines[0][:60]!r:.80}, expected {HEADER!r:.80}"
    for number, line in enumerate(lines[1:]):
        for rule, problem in _row_problems(line.removesuffix("\r"), number, file):
            found.setdefault(rule, f"line {number + 2}: {problem}")
    if len(lines) != file.num_rows + 1:
        found["length"] = f"has {len(lines):,} lines with its header, expected {file.num_rows + 1:,}"
    return list(found.values())


def _row_problems(line: str, number: int, file: SubmissionFile) -> list[tuple[str, str]]:
    fields = line.split("\t")
    if len(fields) != 2:
        return [("fields", f"{len(fields)} fields, expected an index and a prediction with one tab between them")]
    problems = []
    if fields[0] != str(number):
        problems.append(("index", f"the index is {fields[0][:20]!r:.80}, expected {number}"))
    if file.labels and fields[1] not in file.labels:
        problems.append(("label", f"the prediction {fields[1][:40]!r:.80} is not one of {', '.join(file.labels)}"))
    if not file.labels:
        is_number = _NUMBER.fullmatch(fields[1]) is not None
        if not is_number:
            problems.append(("label", f"the prediction {fields[1][:40]!r:.80} is not a number"))
        elif not 0.0 <= float(fields[1]) <= 5.0:
            problems.append(("range", f"the score {fields[1]} does not lie from 0 to 5"))
    return problems
