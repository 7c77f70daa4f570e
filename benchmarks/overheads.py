"""Overheads around the arithmetic: start-up, evaluation, saves and options that are off.

Every part runs in separate processes, in turn with its peer if there is one. `--parts` repeats the selected parts and
keeps the other figures that are stored next to the page.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from overheads_report import page, summary_rows
from rounds import in_turn, quiet_load
from surroundings import minilm_folder, processor, versions, write_results

HERE = Path(__file__).parent
PARTS = ("start_up", "evaluation", "saves", "options")
RUNS = ("pretrain", "finetune", "evaluate", "predict")
LOADED = "import maskloom; maskloom.load({0!r}).encode(['one sentence'])"
THEIRS = (
    "from transformers import AutoTokenizer, BertModel; t = AutoTokenizer.from_pretrained({0!r}); "
    "m = BertModel.from_pretrained({0!r}).eval(); m(**t('one sentence', return_tensors='pt'))"
)


def jobs(folder: Path) -> dict[str, list[str]]:
    """Return the commands to time, ours and the peers', by their names on the page."""
    text, vocabulary, corpus = folder / "text.txt", folder / "vocab", folder / "corpus"
    text.write_text("".join(f"This is line {n}. It has two sentences.\n\n" for n in range(50)), encoding="utf-8")
    maskloom = [sys.executable, "-m", "maskloom"]
    for command in (
        ["vocab", "train", text, "--size", "80", "--out", vocabulary],
        ["corpus", "build", text, "--vocab", vocabulary, "--out", corpus],
    ):
        subprocess.run([*maskloom, *map(str, command)], check=True, capture_output=True)
    model = str(minilm_folder())
    found = {
        "import of the command line": _code("import maskloom.cli"),
        "`maskloom --help`": [*maskloom, "--help"],
        "`maskloom vocab inspect`": [*maskloom, "vocab", "inspect", str(vocabulary)],
        "`maskloom corpus stats`": [*maskloom, "corpus", "stats", str(corpus)],
        "`maskloom info`, of a corpus": [*maskloom, "info", str(corpus)],
        "`maskloom info`, of a model": [*maskloom, "info", model],
        **{f"imports of `maskloom {name.replace('_', '-')}`": _imports(name) for name in RUNS},
        "first vector from a model folder": _code(LOADED.format(model)),
        "peer: `import torch`": _code("import torch"),
        "peer: `from transformers import BertModel`": _code("from transformers import BertModel"),
        "peer: `from transformers import Trainer`": _code("from transformers import Trainer"),
        "peer: `import sentence_transformers`": _code("import sentence_transformers"),
        "peer: first vector with transformers": _code(THEIRS.format(model)),
    }
    return {name: command for name, command in found.items() if not name.startswith("peer") or _works(command)}


def start_up(rounds: int) -> dict[str, Any]:
    """Return wall-clock seconds and processor seconds per round, and peak MiB, of each job; jobs run in turn."""
    with tempfile.TemporaryDirectory() as folder:
        commands = jobs(Path(folder))
        found: dict[str, Any] = {name: {"wall": [], "processor": [], "peak_mib": 0.0} for name in commands}
        for number in range(rounds + 1):
            for name, command in in_turn(list(commands.items()), number):
                wall, used, mib = _timed(command)
                if number:
                    found[name]["wall"].append(wall)
                    found[name]["processor"].append(used)
                    found[name]["peak_mib"] = max(found[name]["peak_mib"], mib)
            print(f"start-up, round {number} of {rounds}", flush=True)
    return found


def _code(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def _imports(name: str) -> list[str]:
    return _code(f"import maskloom.cli, maskloom.runs.{name}, maskloom.runs.display, maskloom.runs.task_summaries")


def _works(command: list[str]) -> bool:
    return subprocess.run(command, capture_output=True).returncode == 0


def _timed(command: list[str]) -> tuple[float, float, float]:
    """Run a command to its end and return its own wall-clock seconds, processor seconds and peak MiB."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{command}: exit code {process.returncode}")
    return wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def child(script: str, *arguments: object) -> Any:
    """Run a script from this folder and return the JSON on its last line of output."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    print(f"{script} {' '.join(map(str, arguments))}", flush=True)
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{script}: {result.stderr[-2000:]}")
    return json.loads(result.stdout.splitlines()[-1])


def measure(part: str, rounds: int, threads: int) -> Any:
    """Measure one part."""
    if part == "start_up":
        return start_up(rounds)
    if part == "evaluation":
        return child("overheads_evaluation.py", "--rounds", rounds, "--threads", threads)
    if part == "options":
        return child("overheads_options.py", "--pairs", rounds + 2)
    sizes = (("mini", 32, rounds), ("base", 8, rounds))
    return [
        child("overheads_saves.py", "--size", size, "--batch-size", batch, "--rounds", times, "--threads", threads)
        for size, batch, times in sizes
    ]


def main() -> None:
    """Parse the options, measure, and write the figures and the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds of each part (default 5)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"), help="page to write")
    options = parser.parse_args()
    figures_path = options.out.with_suffix(".json")
    figures = json.loads(figures_path.read_text(encoding="utf-8")) if figures_path.exists() else {}
    load = quiet_load()
    for part in sorted(options.parts, key=PARTS.index):  # start-up first: what we load counts as a child's peak memory
        results = measure(part, options.rounds, options.threads)
        figures[part] = {
            "threads": options.threads,
            "load_before": load,
            "processor": processor(),
            "versions": versions("transformers", "sentence-transformers"),
            "medians_of": options.rounds,
            "results": results,
        }
        figures |= {"machine": processor(), "summary": summary_rows(figures)}
        write_results(options.out, figures, page(figures))


if __name__ == "__main__":
    main()
