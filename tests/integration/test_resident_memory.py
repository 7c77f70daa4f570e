"""Commands stay within their stated memory for text of any shape; all their processes are counted."""

import gzip
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.integration.test_flat_memory import write_model

from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

GIB = 1 << 30
SIZE = 60 << 20
SHAPES = {
    "short lines": lambda: b"a\n" * (SIZE // 2),
    "one long line": lambda: b"word " * (SIZE // 5),
    "words": lambda: b"\n\n".join(b"w%07d" % number for number in range(SIZE // 10)),
}


def _peak(command: list[str]) -> int:
    """Run a command, and return the peak memory of all its processes together, counting shared pages once."""
    with subprocess.Popen([sys.executable, "-m", "maskloom", *command], start_new_session=True) as process:
        peak = 0
        while process.poll() is None:
            peak = max(peak, sum(_proportional(path) for path in _session(process.pid)))
            time.sleep(0.2)
    assert process.returncode == 0
    return peak


def _session(leader: int) -> list[Path]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            fields = (path / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        found += [path] if int(fields[3]) == leader else []
    return found


def _proportional(path: Path) -> int:
    try:
        lines = (path / "smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("shape", SHAPES)
def test_a_corpus_is_built_within_a_gibibyte(tmp_path: Path, shape: str) -> None:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, "a", "word", "w", *(f"##{digit}" for digit in range(10))])
    WordPieceTokenizer(vocabulary).save(tmp_path / "vocabulary")
    (tmp_path / "text.txt.gz").write_bytes(gzip.compress(SHAPES[shape](), 6))
    folders = ["--vocab", str(tmp_path / "vocabulary"), "--out", str(tmp_path / "corpus")]
    peak = _peak(["corpus", "build", str(tmp_path / "text.txt.gz"), *folders, "--workers", "2"])
    print(f"{shape}: {peak / 2**20:.0f} MiB")
    assert peak < GIB


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_rows_of_a_mebibyte_are_predicted_within_a_gibibyte(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", "single")
    with (tmp_path / "rows.txt").open("w") as file:
        for _ in range(500):
            file.write("alpha beta " * (2**20 // 11) + "\n")
    peak = _peak(["predict", "--model", str(folder), "--input", str(tmp_path / "rows.txt"), "--output", "/dev/null"])
    print(f"500 rows of 1 MiB: {peak / 2**20:.0f} MiB")
    assert peak < GIB
