"""Train a Transformer from scratch on Multi30k, German to English, with the shipped recipe.

Runs are trained by `maskloom finetune` in a child process and scored on the test sets by `maskloom evaluate`. Finished
runs are stored in runs.jsonl under --out and are not repeated. Processor time is that of all threads during training,
including evaluations on dev. `maskloom reproduce transformer-table3` compares variations of the model.

    python benchmarks/translation.py --out ~/translation --results results/translation
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from surroundings import data_folder, machine, parser_of_runs, write_results

_TESTS = ("test_2016_flickr", "test_2017_flickr", "test_2017_mscoco")
_SIZE = 6000
# Table 2 of the paper: BLEU for English-German and English-French, then the floating-point operations of training.
_PAPER = {
    "ByteNet": ("23.75", "-", "-", "-"),
    "Deep-Att + PosUnk": ("-", "39.2", "-", "1.0e20"),
    "GNMT + RL": ("24.6", "39.92", "2.3e19", "1.4e20"),
    "ConvS2S": ("25.16", "40.46", "9.6e18", "1.5e20"),
    "MoE": ("26.03", "40.56", "2.0e19", "1.2e20"),
    "Deep-Att + PosUnk, ensemble": ("-", "40.4", "-", "8.0e20"),
    "GNMT + RL, ensemble": ("26.30", "41.16", "1.8e20", "1.1e21"),
    "ConvS2S, ensemble": ("26.36", "41.29", "7.7e19", "1.2e21"),
    "Transformer, `transformer-base-as-published`": ("27.3", "38.1", "3.3e18", "3.3e18"),
    "Transformer, `transformer-big-as-published`": ("28.4", "41.8", "2.3e19", "2.3e19"),
}
_KILLED = "the recipe, killed three times and resumed"
_KILLS = (0.2, 0.5, 0.8)  # as fractions of the uninterrupted run's time
_RUNS: dict[str, tuple[str, ...]] = {
    "the recipe": (),
    _KILLED: (),
    "mean of the last 3 checkpoints": ("training.average_checkpoints=3",),
}


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = parser_of_runs(__doc__, seeds=1)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    prepare(options.out)
    for seed in range(options.seeds):
        for name, changes in _RUNS.items():
            if (name, seed) not in {(run["name"], run["seed"]) for run in finished(options.out)}:
                made = make(options.out, name, changes, seed)
                with (options.out / "runs.jsonl").open("a", encoding="utf-8") as file:
                    print(json.dumps(made), file=file)
                print(f"{name}, seed {seed}: {made['scores'][_TESTS[0]]['bleu']:.1f} BLEU", flush=True)
    if options.results:
        write_page(options.results, finished(options.out))


def prepare(out: Path) -> None:
    """Copy the data, and train the joint vocabulary of both languages."""
    source = data_folder() / "family" / "multi30k"
    for name in ("train", "val", *_TESTS):
        for language in ("de", "en"):
            shutil.copyfile(source / f"{name}.{language}", out / f"{name}.{language}")
    if not (out / "vocab").exists():
        texts = [str(out / f"train.{language}") for language in ("de", "en")]
        command("vocab", "train", *texts, "--cased", "--size", str(_SIZE), "--out", str(out / "vocab"))


def make(out: Path, name: str, changes: Sequence[str], seed: int) -> dict[str, Any]:
    """Train and score one run."""
    folder = out / "runs" / f"{name.replace(' ', '-').replace(',', '')}-{seed}"
    settings = ["seq2seq.target_suffix=en", f"seed={seed}", *changes]
    sets = [part for setting in settings for part in ("--set", setting)]
    files = ("--vocab", str(out / "vocab"), "--train", str(out / "train.de"), "--dev", str(out / "val.de"))
    goes_on = resumed(folder)  # then the processor time of the whole run is unknown
    began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    training = ["finetune", "--recipe", "translation", *files, "--out", str(folder), *sets]
    kills = []
    if name == _KILLED:
        (whole,) = (run["wall_seconds"] for run in finished(out) if (run["name"], run["seed"]) == ("the recipe", seed))
        kills = [whole * (after - before) for before, after in itertools.pairwise((0.0, *_KILLS))]
    for seconds in kills:
        kill(training + resumed(folder), seconds)
    command(*training, *resumed(folder))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter() - began
    cpu = None if goes_on else after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    best = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["best"]["scores"]
    scores = {
        test: json.loads(command("evaluate", "--model", str(folder), "--data", str(out / f"{test}.de"), "--json"))
        for test in _TESTS
    }
    for found in scores.values():
        found["data"]["path"] = Path(found["data"]["path"]).name
    weights = hashlib.sha256((folder / "model" / "model.safetensors").read_bytes()).hexdigest()
    found = {"name": name, "seed": seed, "changes": list(changes), "dev": best, "scores": scores}
    return {**found, "wall_seconds": wall, "cpu_seconds": cpu, "kills": len(kills), "sha256": weights}


def resumed(folder: Path) -> list[str]:
    """Return the option that resumes a run, or nothing if the run has not started."""
    return ["--resume"] if (folder / "recipe.toml").exists() else []


def kill(arguments: Sequence[str], seconds: float) -> None:
    """Run maskloom and kill it with SIGKILL after `seconds`; raises SystemExit if it ends before."""
    process = subprocess.Popen([sys.executable, "-m", "maskloom", *arguments], stdout=subprocess.DEVNULL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        raise SystemExit(f"the run ended with {process.wait(seconds)} before it was killed")
    process.kill()
    process.wait()


def command(*arguments: str) -> str:
    """Run maskloom and return its standard output."""
    done = subprocess.run([sys.executable, "-m", "maskloom", *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout


def finished(out: Path) -> list[dict[str, Any]]:
    """Return the finished runs."""
    path = out / "runs.jsonl"
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def signature_lines(runs: list[dict[str, Any]]) -> list[str]:
    """Return sacrebleu's signatures of the test scores, which runs of earlier versions do not have."""
    stored = [scores.get("signatures", {}) for run in runs for scores in run["scores"].values()]
    shown = {f"{name} `{text}`" for signatures in stored for name, text in signatures.items()}
    return [f"sacrebleu's signatures: {', '.join(sorted(shown))}.", ""] if shown else []


def write_page(target: Path, runs: list[dict[str, Any]]) -> None:
    """Write the results as JSON and as a Markdown page."""
    lines = [
        "# Translation: a small Transformer trained from scratch",
        "",
        "Generated by `python benchmarks/translation.py --out DIR --results results/translation`; do not edit.",
        "Multi30k, German to English, 29,000 sentence pairs; recipe `translation`: two layers of width 128 in encoder",
        "and decoder, 8 epochs, beam size 4. BLEU and chrF are computed by sacrebleu (13a, cased) for the weights that",
        "are best on dev, or for the mean that a row names. Minutes are CPU time, over all threads.",
        "",
        "| | dev loss | dev BLEU | test2016 BLEU | chrF | test2017 BLEU | MSCOCO BLEU | minutes |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(run["name"] for run in runs):
        same = [run for run in runs if run["name"] == name]
        seconds = [run["cpu_seconds"] for run in same]
        cells = [
            spread([run["dev"]["loss"] for run in same], 2),
            spread([run["dev"]["bleu"] for run in same]),
            spread([run["scores"][_TESTS[0]]["bleu"] for run in same]),
            spread([run["scores"][_TESTS[0]]["chrf"] for run in same]),
            *(spread([run["scores"][test]["bleu"] for run in same]) for test in _TESTS[1:]),
            "-" if None in seconds else spread([each / 60 for each in seconds]),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    same = {run["seed"]: run["sha256"] for run in runs if run["name"] == "the recipe"}
    killed = [run for run in runs if run["kills"]]
    equal = sum(run["sha256"] == same[run["seed"]] for run in killed)
    lines += [
        "",
        f"Number of runs killed by SIGKILL, {len(_KILLS)} times each, and resumed: {len(killed)}. Of these, {equal}",
        "ended with the same weights as the uninterrupted run, bit for bit.",
        "",
        *signature_lines(runs),
        "The paper's own figures (Vaswani et al. 2017, Table 2) are BLEU of tokenised text on newstest2014, which is",
        "not comparable. It gives one number of operations for each size of the Transformer.",
        "",
        "| published | BLEU English-German | English-French | operations English-German | English-French |",
        "|---|---|---|---|---|",
        *(f"| {name} | {' | '.join(cells)} |" for name, cells in _PAPER.items()),
        "",
    ]
    lines += [f"{machine()}."]
    write_results(target, {"runs": runs}, "\n".join(lines) + "\n")


def spread(values: list[float], digits: int = 1) -> str:
    """Return the mean, with the standard deviation if there are several values."""
    deviation = f" ± {stdev(values):.{digits}f}" if len(values) > 1 else ""
    return f"{fmean(values):.{digits}f}{deviation}"


if __name__ == "__main__":
    main()
