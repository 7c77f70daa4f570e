"""Names in CoNLL-2003 by a BiLSTM with a CRF: on frozen word vectors, and on the features of a frozen ELMo.

The word vectors (skip-gram) and the ELMo are trained on the same part of Wikipedia. Each row is the recipe `features`
with its layers, on a fixed part of CoNLL-2003. Finished runs in --out are not repeated. The page is results/elmo.md.

    python benchmarks/elmo_tagging.py --out ~/elmo --results results/elmo
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from textwrap import fill
from typing import Any

import numpy as np
import torch
from feature_based import some_sentences
from surroundings import data_folder, processor, write_real_text

from maskloom.checkpoints.huggingface import save_model
from maskloom.config import FinetuneRecipe, PretrainRecipe, load_recipe, validate_recipe
from maskloom.data.corpus.opening import Corpus, split_documents
from maskloom.data.settings import PretrainingData
from maskloom.models.assembled import build_model
from maskloom.models.recurrent_config import LstmConfig
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.recipe_files import recipe_path
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.runs.finetune import LabelledFiles, finetune
from maskloom.runs.pretrain import pretrain
from maskloom.runs.words import open_vectors, train_words
from maskloom.text.normalization import words as words_of
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.words.settings import WordsRecipe

CHANGES = [
    *("features.lstm_size=256", "features.dropout=0.3", "training.epochs=15.0", "data.max_length=2000"),
    "tagging.crf=true",
]
_DISCOUNT = 0.75
# Settings of individual rows; {words} is the folder of the word vectors.
_MORE = {"normed": ("mix.layer_norm=true",), "joined": ("features.word_vectors={words}",)}
# The directions of the language model, and the batch field that holds the targets of each.
_WAYS = {"forward": "mlm_labels", "backward": "backward_labels"}
# Name, model, layers, description.
ROWS = (
    ("vectors", "vectors", "embeddings", "word vectors alone"),
    ("characters", "elmo", "embeddings", "ELMo's characters alone, layer 0"),
    ("top", "elmo", "last", "ELMo, top layer"),
    ("mix", "elmo", "scalar_mix", "ELMo, learned mix of layers"),
    ("normed", "elmo", "scalar_mix", "the same, of layers brought to mean 0 and variance 1"),
    ("joined", "elmo", "scalar_mix", "word vectors and the mix, joined"),
)
_PAGE = """\
# ELMo against word vectors: names in CoNLL-2003

Made by `python benchmarks/elmo_tagging.py --out DIR --megabytes {megabytes:g} --steps {steps} --train {train} --dev
{dev} --seeds {seeds} --results results/elmo`; do not edit. Text: {text}. Word vectors: skip-gram of size 100, 5 epochs,
of words with 5 occurrences or more; a word that has fewer is the unknown word, a zero vector. ELMo: size {size},
{parameters:,} parameters, {steps:,} steps of `objective = "bidirectional_lm"`, {seen:,} words read, a softmax over
{vocabulary:,} words; perplexity on held-out text {perplexity:.1f} (forward {forward:.1f}, backward {backward:.1f}).
Trigrams on the same text, interpolated by Kneser and Ney's rule, have {trigrams[forward]:.1f} and
{trigrams[backward]:.1f}.
Taggers: {train:,} sentences of CoNLL-2003, drawn by Python's `random.Random(0)`, scored on {dev} of its dev set: entity
F1 in percent, the best epoch on dev, mean ± standard deviation over {seeds} seeds. The recipe is `features` with

    {changes}

| what the BiLSTM and the CRF read | `features.layers` | F1 |
|---|---|---|
{rows}

Joined as in the paper (3.3), ELMo's mix changes the F1 of word vectors by {brought:+.1f}. The F1 of the mix alone is
{lead:+.1f} compared with theirs, and {top:+.1f} compared with the top layer's. {machine}.
"""


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for runs, outside the repository")
    parser.add_argument("--data", type=Path, default=data_folder(), help="folder of the public data sets")
    parser.add_argument("--megabytes", type=float, default=20.0, help="of text")
    parser.add_argument("--vocabulary", type=int, default=10_000, help="words that the ELMo predicts")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--steps", type=int, default=10_000, help="of pre-training")
    parser.add_argument("--train", type=int, default=3000, help="sentences to train taggers on")
    parser.add_argument("--dev", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=None, help="write PATH.md and PATH.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    text = _text(out / "text.txt", int(options.megabytes * 1e6))
    models = {"vectors": _vectors(out), "elmo": _elmo(out, options)}
    files = [
        some_sentences(options.data / "conll2003" / f"{name}.txt", out / f"{name}.txt", number)
        for name, number in (("train", options.train), ("valid", options.dev))
    ]
    found = {}
    for name, model, layers, _ in ROWS:
        more = [setting.format(words=out / "words") for setting in _MORE.get(name, ())]
        changes = [f"features.layers={layers}", *CHANGES, *more, f"restarts={options.seeds}"]
        recipe = load_recipe(FinetuneRecipe, recipe_path("features"), changes)
        folder = out / name
        resume = (folder / "recipe.toml").exists()
        result = finetune(recipe, model=models[model], data=LabelledFiles(*files), out=folder, resume=resume)
        found[name] = result["restarts"]
        print(name, found[name]["mean"], found[name]["standard_deviation"], flush=True)
    if options.results:
        _write_page(options, text, found, {way: trigram_perplexity(*_streams(out / "corpus", way)) for way in _WAYS})


def _text(path: Path, num_bytes: int) -> str:
    """Write the text, and a copy with words separated by spaces, as in CoNLL; return a description of the text."""
    told = path.with_suffix(".told")
    if not told.exists():
        name = write_real_text(path, num_bytes)
        lines = path.read_text(encoding="utf-8").split("\n")
        cut = "\n".join(" ".join(words_of(line, lowercase=False)) for line in lines)
        path.with_name("words.txt").write_text(cut, encoding="utf-8")
        told.write_text(name, encoding="utf-8")
    return told.read_text(encoding="utf-8")


def _vectors(out: Path) -> Path:
    """Return a model folder whose embeddings are word vectors; its LSTM layer has random weights and is not used."""
    folder = out / "vectors-model"
    if not (folder / "config.json").exists():
        recipe = WordsRecipe(tokenize="spaces", cased=True, workers=1)
        train_words(out / "words.txt", recipe, out=out / "words", resume=(out / "words" / "recipe.toml").exists())
        vectors = open_vectors(out / "words")
        kept = [row for row, word in enumerate(vectors.words) if word not in SPECIAL_TOKENS]
        vocabulary = Vocabulary([*SPECIAL_TOKENS, *(vectors.words[row] for row in kept)])
        matrix = torch.from_numpy(vectors.matrix[kept])
        config = LstmConfig(vocab_size=len(vocabulary), hidden_size=matrix.shape[1], max_position_embeddings=10_000)
        model = build_model(config, (), seed=0)
        with torch.no_grad():
            model.encoder.word_embeddings.zero_()[len(SPECIAL_TOKENS) :] = matrix
        save_model(model, folder)
        WordPieceTokenizer(vocabulary, lowercase=False, max_length=10_000).save(folder)
    return folder


def _elmo(out: Path, options: argparse.Namespace) -> Path:
    """Return the run folder of the bidirectional language model."""
    words, corpus, run = (out / name for name in ("vocabulary", "corpus", "elmo"))
    if not (run / "metrics.json").exists():
        if not words.exists():
            settings = VocabularySettings(options.vocabulary, lowercase=False, model="words")
            train_vocabulary_from_files([out / "text.txt"], settings=settings, out=words)
        build_corpus_from_files(out / "text.txt", vocab=words, out=corpus)
        training = {"steps": options.steps, "batch_size": 64, "learning_rate": 3e-3, "schedule": "cosine"}
        values: dict[str, Any] = {"objective": "bidirectional_lm", "model": {"size": options.size}}
        values |= {"training": {**training, "warmup_ratio": 0.02, "num_threads": 1, "max_evaluation_instances": 2000}}
        recipe = validate_recipe(PretrainRecipe, values, source="elmo_tagging.py")
        pretrain(recipe, corpus=corpus, out=run, resume=(run / "recipe.toml").exists())
    return run


def _streams(corpus: Path, way: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the training and the held-out target words of one direction, including sentence boundaries."""
    opened, row = Corpus.open(corpus), PRETRAINING["bidirectional_lm"]
    data = PretrainingData(next_sentence=False, max_length=512)
    found = []
    for documents in split_documents(opened, data.held_out_fraction, seed=0):
        loader = row.loader(opened, documents, data, batch_size=64, seed=0)
        found.append(np.concatenate([getattr(batch, _WAYS[way]) for batch in loader.epoch_batches(0)]).astype(np.int64))
    return found[0], found[1]


def trigram_perplexity(train: np.ndarray, held_out: np.ndarray) -> float:
    """Return the perplexity of words by a trigram with interpolated Kneser-Ney smoothing (Chen and Goodman 1999, 2.7).

    An unseen context backs off to the shorter one, and the shortest context interpolates with a uniform distribution.
    """
    base = int(max(train.max(), held_out.max())) + 1
    probability = np.full(len(held_out) - 2, 1.0 / base)
    ngrams, times = np.unique(_grams(train, base), return_counts=True)
    levels = [(ngrams, times)]
    for _ in range(2):  # below the trigram, an n-gram counts once per distinct preceding word
        ngrams, times = np.unique(ngrams % base ** (3 - len(levels)), return_counts=True)
        levels.append((ngrams, times))
    wanted = _grams(held_out, base)
    for order, (grams, counts) in zip((1, 2, 3), reversed(levels), strict=True):
        contexts, inverse = np.unique(grams // base, return_inverse=True)
        totals, kinds = np.bincount(inverse, counts), np.bincount(inverse)
        own = wanted % base**order
        count, total = _looked_up(grams, counts, own), _looked_up(contexts, totals, own // base)
        rest = _DISCOUNT * _looked_up(contexts, kinds, own // base)
        with np.errstate(invalid="ignore", divide="ignore"):
            mixed = (np.maximum(count - _DISCOUNT, 0.0) + rest * probability) / total
        probability = np.where(total > 0, mixed, probability)
    return float(np.exp(-np.log(probability).mean()))


def _grams(words: np.ndarray, base: int) -> np.ndarray:
    return (words[:-2] * base + words[1:-1]) * base + words[2:]


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the values of the wanted keys, 0 where a key is missing; `keys` are in ascending order."""
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0).astype(np.float64)


def _write_page(
    options: argparse.Namespace, text: str, found: dict[str, dict[str, Any]], trigrams: dict[str, float]
) -> None:
    run = options.out / "elmo"
    metrics = json.loads((run / "metrics.json").read_text(encoding="utf-8"))
    config = json.loads((run / "model" / "config.json").read_text(encoding="utf-8"))
    from safetensors import safe_open

    with safe_open(run / "model" / "model.safetensors", "pt") as file:
        parameters = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    metrics["trigram_perplexity"] = trigrams
    about = {"metrics": metrics, "seen": options.steps * 64 * 20, "parameters": parameters, "text": text, "rows": found}
    options.results.with_suffix(".json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    mean = {name: 100 * found[name]["mean"] for name in found}
    rows = []
    for name, _, layers, what in ROWS:
        more = [setting.format(words="VECTORS") for setting in _MORE.get(name, ())]
        settings, spread = [layers, *more], 100 * (found[name]["standard_deviation"] or 0.0)
        rows.append(f"| {what} | {', '.join(f'`{one}`' for one in settings)} | {mean[name]:.1f} ± {spread:.1f} |")
    page = _PAGE.format(
        steps=options.steps,
        megabytes=options.megabytes,
        seeds=options.seeds,
        text=text,
        size=options.size,
        parameters=parameters,
        seen=about["seen"],
        vocabulary=config["vocab_size"],
        perplexity=metrics["bilm_perplexity"],
        forward=metrics["forward_perplexity"],
        backward=metrics["backward_perplexity"],
        trigrams=trigrams,
        train=options.train,
        dev=options.dev,
        changes=" ".join(f"--set {change}" for change in CHANGES),
        rows="\n".join(rows),
        brought=mean["joined"] - mean["vectors"],
        lead=mean["mix"] - mean["vectors"],
        top=mean["mix"] - mean["top"],
        machine=processor(),
    )
    paragraphs = page.split("\n\n")
    filled = [part if part[0] in "#| " else fill(part, 120, break_on_hyphens=False) for part in paragraphs]
    options.results.with_suffix(".md").write_text("\n\n".join(filled) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
