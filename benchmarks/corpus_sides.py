"""The sides of `corpus_building.py`; runs one of them in this process and prints its time as JSON.

- `ours`: `build_corpus` into a new folder, with fsync on every file; then drawing one epoch of masked instances.
- `google`: `create_training_instances` of google-research/bert, from the package bert-tensorflow: reading,
  `FullTokenizer`, instances in memory. Writing TFRecord files is left out, since TensorFlow is not installed.
- `datasets`: the approach of transformers' run_mlm.py: `datasets.map` with the fast tokenizer, `datasets.map` to
  join the ids into rows of 128; then every row through the masking collator.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import sys
import time
import types
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

from surroundings import minilm_folder

LENGTH, MAX_PREDICTIONS, BATCH_SIZE, SEED = 128, 20, 256, 0


class Stopwatch:
    """Measures wall-clock seconds, and processor seconds of this process and its terminated children."""

    def __init__(self) -> None:
        self._start = self._now()

    def lap(self) -> dict[str, float]:
        """Return the time since the last lap, and start a new lap."""
        start, self._start = self._start, self._now()
        return {"seconds": self._start[0] - start[0], "processor": self._start[1] - start[1]}

    def _now(self) -> tuple[float, float]:
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return time.perf_counter(), sum(each.ru_utime + each.ru_stime for each in used)


def google_modules() -> tuple[Any, Any]:
    """Import the generator and its tokenizer with stubs for TensorFlow, which provides options, files and logging."""
    names = ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1", "absl", "absl.flags", "six")
    modules = {name: types.ModuleType(name) for name in names}

    def ignore(*_: Any, **__: Any) -> None: ...

    def opened(name: str, mode: str) -> Any:
        return open(name, mode, encoding="utf-8")

    kinds = ("DEFINE_string", "DEFINE_bool", "DEFINE_integer", "DEFINE_float")
    tensorflow: Any = modules["tensorflow.compat.v1"]
    tensorflow.flags = types.SimpleNamespace(FLAGS=None, **dict.fromkeys(kinds, ignore))
    tensorflow.gfile = types.SimpleNamespace(GFile=opened)
    tensorflow.logging = types.SimpleNamespace(info=ignore)
    parents: Any = modules
    parents["tensorflow"].compat = modules["tensorflow.compat"]
    parents["tensorflow.compat"].v1 = tensorflow
    parents["six"].PY2, parents["six"].PY3 = False, True
    parents["absl"].flags = modules["absl.flags"]
    parents["absl.flags"].DEFINE_bool = ignore
    parents["absl.flags"].FLAGS = types.SimpleNamespace(preserve_unused_tokens=False)
    with mock.patch.dict(sys.modules, modules):
        from bert import create_pretraining_data, tokenization  # pyright: ignore[reportMissingImports]
    tokenizer = tokenization.FullTokenizer(str(minilm_folder() / "vocab.txt"), do_lower_case=True)
    return create_pretraining_data, tokenizer


def google(text: Path, num_duplicates: int) -> dict[str, Any]:
    """Create the training instances of a text in memory."""
    generator, tokenizer = google_modules()
    watch = Stopwatch()
    instances = generator.create_training_instances(
        [str(text)], tokenizer, LENGTH, num_duplicates, 0.1, 0.15, MAX_PREDICTIONS, random.Random(SEED)
    )
    assert instances
    return {"build": watch.lap()}


def ours(text: Path, out: Path, num_workers: int, *, draws: bool) -> dict[str, Any]:
    """Build a corpus and, with `draws`, draw an epoch of masked instances."""
    from maskloom.data.corpus.building import CorpusSettings, build_corpus
    from maskloom.system.worker_processes import Work
    from maskloom.text.tokenizer import Tokenizer

    tokenizer = replace(Tokenizer.load(minilm_folder()), compatibility="google")
    watch = Stopwatch()
    manifest = build_corpus(
        text, tokenizer=tokenizer, out=out, work=Work(num_workers), settings=CorpusSettings(sentences="lines")
    )
    found: dict[str, Any] = {"build": watch.lap(), "tokens": manifest["num_tokens"], "checksum": manifest["checksum"]}
    if draws:
        found["draw"] = _drawn(out)
    return found


def _drawn(folder: Path) -> dict[str, float]:
    from maskloom.data.corpus.opening import Corpus
    from maskloom.data.settings import PretrainingData
    from maskloom.objectives.pretraining import PRETRAINING

    watch = Stopwatch()
    loader = PRETRAINING["masked_lm"].loader(
        Corpus.open(folder, verify=False),
        None,
        PretrainingData(max_length=LENGTH, max_predictions_per_seq=MAX_PREDICTIONS),
        batch_size=BATCH_SIZE,
        seed=SEED,
    )
    assert sum(batch.num_sequences for batch in loader.epoch_batches(0))
    return watch.lap()


def mapped(text: Path, out: Path, num_workers: int, *, draws: bool) -> dict[str, Any]:
    """Tokenise and join with `datasets.map` and, with `draws`, collate an epoch."""
    os.environ |= {"HF_HUB_OFFLINE": "1", "HF_HOME": str(out), "TOKENIZERS_PARALLELISM": "false"}
    import datasets
    from transformers import AutoTokenizer

    datasets.disable_progress_bars()
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    tokenizer.model_max_length = 1 << 30

    def tokenized(rows: dict[str, list[str]]) -> Any:
        return tokenizer(rows["text"], return_special_tokens_mask=True)

    def grouped(rows: dict[str, list[list[int]]]) -> dict[str, list[list[int]]]:
        joined = {name: [value for row in values for value in row] for name, values in rows.items()}
        total = len(joined["input_ids"]) // LENGTH * LENGTH
        return {name: [row[at : at + LENGTH] for at in range(0, total, LENGTH)] for name, row in joined.items()}

    num_proc = None if num_workers == 1 else num_workers
    watch = Stopwatch()
    raw = datasets.load_dataset("text", data_files=str(text), split="train", cache_dir=str(out / "cache"))
    ids = raw.map(tokenized, batched=True, num_proc=num_proc, remove_columns=["text"])
    rows = ids.map(grouped, batched=True, num_proc=num_proc)
    found: dict[str, Any] = {"build": watch.lap(), "rows": len(rows)}
    if draws:
        from transformers import DataCollatorForLanguageModeling

        collator = DataCollatorForLanguageModeling(tokenizer=tokenizer)
        watch = Stopwatch()
        for start in range(0, len(rows), BATCH_SIZE):
            columns = rows[start : start + BATCH_SIZE]
            collator([dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)])
        found["draw"] = watch.lap()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("side", choices=["ours", "google", "datasets"])
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, default=None)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--duplicates", type=int, default=1)
    parser.add_argument("--draw", action="store_true")
    options = parser.parse_args()
    if options.side == "google":
        found = google(options.text, options.duplicates)
    else:
        run = ours if options.side == "ours" else mapped
        found = run(options.text, options.out, options.workers, draws=options.draw)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
