"""Time building a corpus from real text, in turn with google-research/bert's generator and with `datasets.map`.

All sides read the same file, with one sentence per line and a blank line between documents, and use the same uncased
vocabulary of 30,522 tokens. A first check ensures that our ids are those of Google's tokenizer. `corpus_sides.py`
describes each side. Each run is a separate process that times itself after its imports; memory is the peak of all its
processes together. Ours then also runs on 20 and 200 MB to show how time and memory grow.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import tempfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from child_processes import MEBIBYTE, measured
from corpus_sides import google_modules
from real_text import write_mixed_text
from rounds import MIN_ROUNDS, in_turn, order_said, quiet_load, reached
from surroundings import minilm_folder, processor, write_results

from maskloom.data.corpus.building import CorpusSettings, build_corpus
from maskloom.data.corpus.documents import read_documents
from maskloom.data.corpus.opening import Corpus
from maskloom.text.sentences import split_sentences
from maskloom.text.tokenizer import Tokenizer

SMALL, LARGE = 20, 200
CHECKED_BYTES = 500_000
DUPLICATES, DUPLICATED_BYTES = 10, 4_000_000
PACKAGES = ("bert-tensorflow", "datasets", "transformers", "tokenizers", "numpy")
AIMS = {"google": (10, 20, 30), "datasets": (2.5, 4, 6)}
# ratio of memory for ten times the text: floor, target, stretch
GROWTH_AIMS = (1.5, 1.2, 1.0)
MOST_MEBIBYTES = 400

Key = tuple[str, int, int]


def write_sentences(folder: Path, megabytes: int) -> tuple[Path, str]:
    """Write text, one sentence per line; return the file and a description of the text."""
    raw, path = folder / "raw.txt", folder / f"text-{megabytes}.txt"
    name = write_mixed_text(raw, megabytes * 1_000_000)
    with path.open("w", encoding="utf-8") as file:
        for document in read_documents(raw):
            file.write("\n".join(split_sentences(document.text)) + "\n\n")
    raw.unlink()
    return path, name


def shortened(text: Path, num_bytes: int) -> Path:
    """Write the first documents of a text to a new file."""
    short = text.with_name(f"part-{num_bytes}.txt")
    content = text.read_text(encoding="utf-8")
    short.write_text(content[: content.index("\n\n", num_bytes) + 1], encoding="utf-8")
    return short


def check(text: Path) -> None:
    """Check that our ids are those of Google's tokenizer on the first part of a text."""
    short = shortened(text, CHECKED_BYTES)
    tokenizer = google_modules()[1]
    lines = short.read_text(encoding="utf-8").split("\n")
    tokens = [token for line in lines for token in tokenizer.tokenize(line)]
    out = text.parent / "checked"
    ours = replace(Tokenizer.load(minilm_folder()), compatibility="google")
    build_corpus(short, tokenizer=ours, out=out, settings=CorpusSettings(sentences="lines"))
    corpus = Corpus.open(out)
    ids = corpus.sentences(0, corpus.num_sentences).tolist()
    assert ids == tokenizer.convert_tokens_to_ids(tokens), "the ids of both sides differ"


def run(side: str, workers: int, text: Path, *options: str) -> dict[str, Any]:
    """Run a side once; return the figures that it printed and its peak memory."""
    with tempfile.TemporaryDirectory(dir=text.parent) as folder:
        command = [sys.executable, str(Path(__file__).with_name("corpus_sides.py")), side, str(text)]
        done = measured([*command, "--out", f"{folder}/out", "--workers", str(workers), *options])
    found = json.loads(done.output.splitlines()[-1])
    print(f"{side} {workers} {text.name} {' '.join(options)}: {found}, {done.peak / MEBIBYTE:.0f} MiB", flush=True)
    return {**found, "mebibytes": done.peak / MEBIBYTE}


def seconds(found: dict[str, Any], *, with_drawing: bool = False, kind: str = "seconds") -> float:
    """Return the seconds of building, or of building and drawing an epoch; Google's side draws as it builds."""
    return found["build"][kind] + (found["draw"][kind] if with_drawing and "draw" in found else 0.0)


def measure(texts: dict[int, Path], megabytes: int, num_rounds: int) -> dict[Key, list[dict[str, Any]]]:
    """Run all sides in turn on the comparison text, and ours on the small and the large text."""
    found: dict[Key, list[dict[str, Any]]] = {}
    for number in range(num_rounds):
        print(f"round {number + 1} of {num_rounds}", flush=True)
        sides = (("google", 1), ("datasets", 1), ("datasets", 2), ("ours", 1), ("ours", 2))
        for side, workers in in_turn(sides, number):
            options = [] if side == "google" else ["--draw"]
            key = (side, workers, megabytes)
            found.setdefault(key, []).append(run(side, workers, texts[megabytes], *options))
        for size in in_turn((SMALL, LARGE), number):
            for workers in in_turn((1, 2), number):
                # a separate run even where the text is the peers', because those runs also draw an epoch
                found.setdefault(("grown", workers, size), []).append(run("ours", workers, texts[size]))
    checksums = {
        (size, each["checksum"]) for (_, _, size), runs in found.items() for each in runs if "checksum" in each
    }
    assert len(checksums) == len({megabytes, SMALL, LARGE}), "the corpora of different runs differ"
    return found


def ratios(peer: list[dict[str, Any]], own: list[dict[str, Any]], **options: Any) -> list[float]:
    """Return the peer's seconds divided by ours, round by round."""
    return [seconds(each, **options) / seconds(mine, **options) for each, mine in zip(peer, own, strict=True)]


def compared(found: dict[Key, list[dict[str, Any]]], megabytes: int) -> list[dict[str, Any]]:
    """Return every comparison with a peer: processes on both sides, ratios of wall-clock and of processor time."""
    rows = []
    for side, peer_workers, own_workers, drawn in (
        ("google", 1, 1, True),
        ("google", 1, 2, True),
        ("datasets", 1, 1, False),
        ("datasets", 2, 2, False),
        ("datasets", 1, 1, True),
        ("datasets", 2, 2, True),
    ):
        peer, own = found[side, peer_workers, megabytes], found["ours", own_workers, megabytes]
        by_clock = ratios(peer, own, with_drawing=drawn)
        row = {
            "peer": side,
            "peer_processes": peer_workers,
            "our_processes": own_workers,
            "with_drawing": drawn,
            "ratio": statistics.median(by_clock),
            "lowest": min(by_clock),
            "highest": max(by_clock),
            "by_processor_time": statistics.median(ratios(peer, own, with_drawing=drawn, kind="processor")),
        }
        if own_workers == 2:
            row["aims"] = AIMS[side]
        rows.append(row)
    return rows


def summarised(found: dict[Key, list[dict[str, Any]]], num_tokens: dict[int, int]) -> list[dict[str, Any]]:
    """Return the medians of each side."""
    rows = []
    for (side, workers, size), runs in found.items():
        median = statistics.median(seconds(each) for each in runs)
        rows.append(
            {
                "side": "maskloom" if side in ("ours", "grown") else side,
                "processes": workers,
                "megabytes": size,
                "seconds": median,
                "processor": statistics.median(seconds(each, kind="processor") for each in runs),
                "tokens_per_second": num_tokens[size] / median,
                "mebibytes": max(each["mebibytes"] for each in runs),
                "with_drawing_after": "draw" in runs[0],
            }
        )
    return rows


def growth(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return how time and memory of ours grow from the small to the large text, by number of processes."""
    grown = []
    for workers in (1, 2):
        small, large = (
            next(
                r for r in reversed(rows) if (r["side"], r["processes"], r["megabytes"]) == ("maskloom", workers, size)
            )
            for size in (SMALL, LARGE)
        )
        values = {name: large[name] / small[name] for name in ("seconds", "processor", "mebibytes")}
        grown.append({"processes": workers, **values, "largest_mebibytes": large["mebibytes"]})
    return grown


def summary_rows(compared: list[dict[str, Any]], grown: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the README's table."""
    found = {
        (row["peer"], row["peer_processes"], row["our_processes"]): f"{row['ratio']:.1f}"
        for row in compared
        if row["peer"] == "google" or not row["with_drawing"]
    }
    one, two = grown
    return [
        {
            "job": "text to corpus and an epoch of masked instances, 1 / 2 processes",
            "beside": "google-research/bert's create_pretraining_data, 1 process",
            "result": f"{found['google', 1, 1]} / {found['google', 1, 2]} times the tokens per second",
        },
        {
            "job": "text to corpus, 1 / 2 processes",
            "beside": "datasets.map as in run_mlm, 1 / 2 processes",
            "result": f"{found['datasets', 1, 1]} / {found['datasets', 2, 2]} times the tokens per second",
        },
        {
            "job": f"{LARGE} MB of text to corpus, 1 / 2 processes",
            "beside": f"maskloom on {SMALL} MB",
            "result": f"{one['seconds']:.1f} / {two['seconds']:.1f} times the time, "
            f"{one['largest_mebibytes']:.0f} / {two['largest_mebibytes']:.0f} MiB peak memory",
        },
    ]


def report(result: dict[str, Any]) -> str:
    """Return the measurements as Markdown."""
    lines = [
        "# Building a corpus: maskloom, google-research/bert's create_pretraining_data, datasets.map",
        "",
        f"Generated by `{result['command']}`; do not edit.",
        "",
        f"- Machine: {result['machine']}; {result['versions']}. Load before the start, from other programs: "
        f"{result['load']:.1f}.",
        f"- Text: {result['text']}; one sentence per line. Smaller texts are made of the same kinds in the same "
        "proportions. "
        "Uncased vocabulary of 30,522; our ids equal Google's (checked on the first "
        f"{CHECKED_BYTES / 1e6:.1f} MB), and our files are the same in every run.",
        f"- Seconds are medians of {order_said(result['rounds'])} Each run is a process of its own, timed after its "
        "imports; processor seconds are those of all processes together. With 2 processes, maskloom has a third that "
        "reads for both. Memory is the largest sum over all processes; shared pages count for each.",
        "- Google's generator creates each instance once (dupe_factor 1), its fastest setting, and writes no files. "
        f"With its default of {DUPLICATES} copies it takes {result['duplicates']:.1f} times as long. Its time includes "
        "drawing sentence pairs and masks; ours only where the table says 'drawing too'.",
        "- The datasets.map route is that of transformers' run_mlm.py: tokenise, with one thread per process, and join "
        "into rows of 128 (no sentence pairs); 'drawing too' adds one epoch through its masking collator, and to ours "
        "one of masked sentence pairs.",
        "",
        *tables(result),
    ]
    return "\n".join(lines) + "\n"


def tables(result: dict[str, Any]) -> list[str]:
    """Return the Markdown tables of ratios, seconds and growth."""
    lines = [
        f"## Ratios on {result['megabytes']} MB",
        "",
        "| peer | its processes | ours | drawing too | peer / ours | range | by processor "
        "| reached (floor / target / stretch) |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in result["ratios"]:
        level = reached(row["lowest"], row.get("aims"))
        lines.append(
            f"| {row['peer']} | {row['peer_processes']} | {row['our_processes']} | "
            f"{'yes' if row['with_drawing'] else 'no'} | **{row['ratio']:.1f}** | {row['lowest']:.1f}-"
            f"{row['highest']:.1f} | {row['by_processor_time']:.1f} | {level} |"
        )
    lines += [
        "",
        "## Seconds and memory",
        "",
        "| side | MB | processes | seconds | processor seconds | tokens per second | peak MiB |",
        "|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['side']}{', drawing after' if row['with_drawing_after'] else ''} | {row['megabytes']} | "
        f"{row['processes']} | {row['seconds']:.2f} | {row['processor']:.2f} | {row['tokens_per_second']:,.0f} | "
        f"{row['mebibytes']:.0f} |"
        for row in result["sides"]
    ]
    lines += [
        "",
        f"## Growth of ours from {SMALL} to {LARGE} MB",
        "",
        f"Time must grow 10 times at most; to reach its target, memory must also stay below {MOST_MEBIBYTES} MiB.",
        "",
        "| processes | seconds, reached | processor seconds | memory, reached | MiB at the end |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['processes']} | {row['seconds']:.2f}, {'met' if row['seconds'] <= 10 else 'missed'} | "
        f"{row['processor']:.2f} | {row['mebibytes']:.2f}, {memory_reached(row)} | {row['largest_mebibytes']:.0f} |"
        for row in result["growth"]
    ]
    return lines


def memory_reached(row: dict[str, Any]) -> str:
    """Return what the growth of memory reaches: the floor at most if there is too much of it at the end."""
    is_small = row["largest_mebibytes"] < MOST_MEBIBYTES
    return reached(row["mebibytes"] if is_small else max(row["mebibytes"], GROWTH_AIMS[0]), GROWTH_AIMS, smaller=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=40, help="text on which the peers are run (default 40)")
    parser.add_argument("--rounds", type=int, default=MIN_ROUNDS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    load = quiet_load()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        written = {size: write_sentences(folder, size) for size in sorted({SMALL, options.megabytes, LARGE})}
        texts = {size: path for size, (path, _) in written.items()}
        check(texts[SMALL])
        found = measure(texts, options.megabytes, options.rounds)
        short = shortened(texts[SMALL], DUPLICATED_BYTES)
        once, copied = (run("google", 1, short, "--duplicates", str(n)) for n in (1, DUPLICATES))
    num_tokens = {size: runs[0]["tokens"] for (_, _, size), runs in found.items() if "tokens" in runs[0]}
    rows = summarised(found, num_tokens)
    result = {
        "command": " ".join(["python benchmarks/corpus_building.py", *sys.argv[1:]]),
        "machine": f"{processor()}; Python {platform.python_version()}",
        "versions": ", ".join(f"{package} {metadata.version(package)}" for package in PACKAGES),
        "load": load,
        "text": written[LARGE][1],
        "megabytes": options.megabytes,
        "rounds": options.rounds,
        "duplicates": seconds(copied, kind="processor") / seconds(once, kind="processor"),
        "summary": summary_rows(compared(found, options.megabytes), growth(rows)),
        "ratios": compared(found, options.megabytes),
        "sides": rows,
        "growth": growth(rows),
    }
    write_results(options.out, result, report(result))
    print(report(result))


if __name__ == "__main__":
    main()
