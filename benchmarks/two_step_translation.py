"""Machine translation by a pre-trained BART in two steps (Lewis et al. 2019, 3.4), against the same model from scratch.

Multi30k, German to English, with few pairs and more English: a BART of two layers, 128 wide, is pre-trained by text
infilling on 24,000 English captions and receives a new encoder for German. The pairs are 4,000 other captions. The
first step trains the new encoder, the position embeddings and the input matrix of the first self-attention; the second
trains everything. The same model from scratch, and the pre-trained one without the first step, are trained for the same
total number of epochs. Every run is a command in a process of one thread. Finished runs are stored under --out and are
not repeated.

    python benchmarks/two_step_translation.py --out ~/two-step --results results/two_step_translation
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from denoising import kept, settings
from surroundings import data_folder, machine, parser_of_runs, write_results
from translation import command, resumed, spread

from maskloom.reproduce.experiments import Trend, above

_PAIRS = 4000
_TEST = "test_2016_flickr"
_SCORES = {"bleu": 1, "chrf": 1, "loss": 2}  # with the number of displayed digits
_NOISE = {"infill_rate": 0.3, "permute_sentences": 0.0}
_FIRST, _EPOCHS, _RATE = 6.0, 24.0, "1e-3"
# Each way to the same model: whether it starts from BART's weights, and the epochs of its steps.
_WAYS: dict[str, tuple[bool, Sequence[float]]] = {
    "from nothing": (False, (_EPOCHS,)),
    "pre-trained, one step": (True, (_EPOCHS,)),
    "pre-trained, two steps": (True, (_FIRST, _EPOCHS - _FIRST)),
}
_TREND = "translation in two steps from a pre-trained BART is at least as good as training from scratch"


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = parser_of_runs(__doc__, seeds=3, jobs=2)
    parser.add_argument("--steps", type=int, default=3000, help="steps of pre-training, of 64 captions")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    kept(options.out / "scores" / "corpus.json", lambda: prepare(options.out))
    with ThreadPoolExecutor(options.jobs) as pool:
        list(pool.map(lambda seed: pretrained(options, seed), range(options.seeds)))
        jobs = {
            (way, seed): pool.submit(translated, options, way, seed) for seed in range(options.seeds) for way in _WAYS
        }
        scores = {job: future.result() for job, future in jobs.items()}
    if options.results:
        write_page(options, {way: [scores[way, seed] for seed in range(options.seeds)] for way in _WAYS})


def prepare(out: Path) -> int:
    """Write the pairs, the English text, both vocabularies and the corpus, and return its number of documents."""
    source = data_folder() / "family" / "multi30k"
    for language in ("de", "en"):
        lines = (source / f"train.{language}").read_text(encoding="utf-8").rstrip("\n").split("\n")
        (out / f"train.{language}").write_text("\n".join(lines[:_PAIRS]) + "\n", encoding="utf-8")
        for name, number in (("val", 300), (_TEST, 1000)):
            chosen = (source / f"{name}.{language}").read_text(encoding="utf-8").split("\n")[:number]
            (out / f"{name}.{language}").write_text("\n".join(chosen) + "\n", encoding="utf-8")
        if language == "en":  # each caption is a document
            (out / "text.txt").write_text("\n\n".join(lines[-24_000:]) + "\n", encoding="utf-8")
    for name, text in (("english", "text.txt"), ("german", "train.de")):
        command("vocab", "train", str(out / text), "--cased", "--size", "4000", "--out", str(out / name))
    build = ("corpus", "build", str(out / "text.txt"), "--vocab", str(out / "english"), "--sentences", "lines")
    command(*build, "--out", str(out / "corpus"))
    return json.loads((out / "corpus" / "manifest.json").read_text(encoding="utf-8"))["num_documents"]


def pretrained(options: argparse.Namespace, seed: int) -> float:
    """Pre-train a BART on the English captions, and return its held-out loss in nats."""
    folder = options.out / "runs" / f"bart-{seed}"

    def make() -> float:
        noise = [f"denoising.{key}={value}" for key, value in _NOISE.items()]
        sets = settings("objective=denoising", "model.architecture=bart", "model.config.num_attention_heads=4", *noise)
        much = ("--size", "tiny", "--steps", str(options.steps), "--batch-size", "64", "--learning-rate", "2e-3")
        how = (*much, "--max-length", "64", "--seed", str(seed), *resumed(folder), *sets)
        command("pretrain", "--corpus", str(options.out / "corpus"), "--out", str(folder), *how)
        return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["loss"]

    return kept(options.out / "scores" / f"{folder.name}.json", make)


def translated(options: argparse.Namespace, way: str, seed: int) -> dict[str, float]:
    """Train on the pairs in the given way, and return the test scores."""
    starts_trained, steps = _WAYS[way]
    name, start = f"{way.replace(',', '').replace(' ', '-')}-{seed}", options.out / "runs" / f"bart-{seed}"

    def make() -> dict[str, float]:
        folder = start
        for number, epochs in enumerate(steps):
            first = number == 0
            before, folder = folder, options.out / "runs" / f"{name}-step-{number + 1}"
            sets = ["seq2seq.target_suffix=en", "seq2seq.beam=1"]
            sets += ["seq2seq.source_layers=2"] if first else []
            sets += ["from_scratch=true"] if not starts_trained else []
            sets += ["seq2seq.source_first=true"] if first and len(steps) > 1 else []
            files = ("--train", str(options.out / "train.de"), "--dev", str(options.out / "val.de"))
            vocab = ("--source-vocab", str(options.out / "german")) if first else ()
            much = ("--epochs", str(epochs), "--batch-size", "32", "--learning-rate", _RATE, "--max-length", "64")
            how = ("--task", "seq2seq", "--seed", str(seed), *vocab, *much, *resumed(folder), *settings(*sets))
            command("finetune", "--model", str(before), *files, "--out", str(folder), *how)
        test = options.out / f"{_TEST}.de"
        found = json.loads(command("evaluate", "--model", str(folder), "--data", str(test), "--json"))
        return {name: found[name] for name in _SCORES}

    return kept(options.out / "scores" / f"{name}.json", make)


def write_page(options: argparse.Namespace, scores: Mapping[str, list[dict[str, float]]]) -> None:
    """Write the results as JSON and as a Markdown page."""
    held_out = [pretrained(options, seed) for seed in range(options.seeds)]
    verdict = Trend(_TREND, above("pre-trained, two steps", "from nothing", "bleu")).verdict(
        {way: {"bleu": [found["bleu"] for found in all_found]} for way, all_found in scores.items()}
    )
    lines = [
        "# Translation by a pre-trained BART in two steps",
        "",
        "Generated by `python benchmarks/two_step_translation.py --out DIR --results results/two_step_translation`.",
        f"German to English, {_PAIRS:,} pairs of Multi30k; BART was pre-trained for {options.steps:,} steps on 24,000",
        f"other English captions (held-out loss {spread(held_out, 2)} nats). Each model is trained for {_EPOCHS:.0f}",
        f"epochs; the first of two steps takes {_FIRST:.0f} of them. The learning rate is {_RATE} in every step;",
        "random weights have BART's standard deviation of 0.02, with which models of this width start slowly.",
        "Greedy decoding by the weights that are best on dev, sacrebleu (13a, cased), test2016; mean and standard",
        f"deviation over {options.seeds} seeds, which affect pre-training too.",
        "",
        "| | BLEU | chrF | loss in nats |",
        "|---|---|---|---|",
    ]
    for way, found in scores.items():
        cells = [spread([one[name] for one in found], digits) for name, digits in _SCORES.items()]
        lines.append(f"| {way.replace('from nothing', 'from scratch')} | {' | '.join(cells)} |")
    measured = f"{verdict['mean']:.1f} ± {verdict['standard_error']:.1f} BLEU" if "mean" in verdict else "-"
    lines += ["", f"{verdict['claim']}: {verdict['verdict']}, {measured} (mean per-seed difference ± standard error)."]
    lines += ["", f"{machine()}."]
    content = {"steps": options.steps, "held_out_loss": held_out, "scores": scores, "verdict": verdict}
    write_results(options.results, content, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
