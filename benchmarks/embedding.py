"""Embed sentences with MiniLM in turn with sentence-transformers and onnxruntime, in fp32, bf16 and int8.

All sides get the same real sentences, in the given order, as Python strings, and return one unit vector per sentence.
Before timing, every fp32 side must match the vectors of transformers, and the quality of the int8 sides is measured.
"""

from __future__ import annotations

import argparse
import gzip
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from embedding_report import PARTS, SIDES, page, summary_rows
from pretraining_step import gemm_peak, memory_kib
from rounds import in_turn, quiet_load
from surroundings import data_folder, minilm_folder, processor, write_results

from maskloom.inference import Predictor
from maskloom.runs.predict import embed
from maskloom.text.sentences import split_sentences

MAX_LENGTH, BATCH_SIZE, NUM_THREADS = 256, 32, 2
# How each of our sides computes matrix products.
COMPUTED = {"ours": "fp32", "ours_bf16": "bf16", "ours_int8": "int8"}
# The peers from file to file, with the packages that they import.
BULK_PEERS = {"sentence_transformers": "sentence_transformers", "onnxruntime_sorted": "onnxruntime"}
# One sentence at a time: turns of each side, the calls of a turn that wake its threads and are not timed, and the
# seconds before a turn, in which the previous side's threads stop spinning.
TURNS, NUM_WAKING, PAUSE = 5, 3, 2.0
Embed = Callable[[list[str]], np.ndarray]


def main() -> None:
    """Parse the options, measure, and write the page and its figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sentences", type=int, default=2000, help="sentences a round")
    parser.add_argument("--bulk", type=int, nargs=2, default=(10_000, 100_000), help="sizes of the two bulk passes")
    parser.add_argument("--threads", type=int, default=NUM_THREADS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(""), help="page and figures, no suffix")
    parser.add_argument("--bulk-of", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": str(options.threads)}
    if options.bulk_of:
        side, texts, folder = options.bulk_of
        return print(json.dumps(bulk_pass(side, Path(texts), Path(folder), options.threads)))
    load = quiet_load()
    with tempfile.TemporaryDirectory() as name:
        figures = measure(options, Path(name))
    figures |= {"command": " ".join(["python benchmarks/embedding.py", *sys.argv[1:]]), "load": load}
    figures["summary"] = summary_rows(figures)
    write_results(options.out, figures, page(figures))
    print(page(figures))
    return None


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Return all figures of the page."""
    sentences = real_sentences(max(options.bulk))
    export(folder)
    sides = {name: make_side(name, folder, options.threads) for name in SIDES}
    count = Predictor.load(minilm_folder(), max_length=MAX_LENGTH).tokenizer
    step = max(1, len(sentences) // (options.sentences * (options.rounds + 1)))
    rounds = [
        sentences[number :: step * (options.rounds + 1)] for number in range(0, step * (options.rounds + 1), step)
    ]
    rounds = [texts[: options.sentences] for texts in rounds]
    figures: dict[str, Any] = {
        "processor": processor(),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": options.threads,
        "versions": versions(),
        "vectors": compare(sides, rounds[0][:200]),
        "quality": quality(sides, rounds[0]),
        "rounds": [],
    }
    for number, texts in enumerate(rounds):
        lengths = [min(len(ids) + 2, MAX_LENGTH) for ids in count.token_ids_batch(texts)]
        row = {"tokens": sum(lengths), "squares": sum(n * n for n in lengths), "peak": gemm_peak(), "sides": {}}
        for name in in_turn(list(SIDES), number):
            row["sides"][name] = timed(sides[name], texts)
        if number:  # the first round is a warm-up
            figures["rounds"].append(row)
            print(
                f"round {number}:",
                *(f"{name} {seconds[0]:.2f} s" for name, seconds in row["sides"].items()),
                flush=True,
            )
    figures["latency"] = latency({**sides, "transformers": transformers_side()}, rounds[0][:150])
    figures["parts"] = {
        side: [time_by_part(sides[side], [[text] for text in rounds[0][:150]]), time_by_part(sides[side], rounds[1:2])]
        for side in ("ours", "ours_int8", "onnxruntime_sorted")
    }
    del sides
    figures["bulk"] = [
        bulk_child(side, sentences[:number], folder, options.threads)
        for side, number in [
            *((side, number) for side in COMPUTED for number in options.bulk),
            *((side, min(options.bulk)) for side in BULK_PEERS),
        ]
    ]
    return figures


def real_sentences(number: int) -> list[str]:
    """Return the first sentences of the Wikipedia excerpt, in order."""
    found: list[str] = []
    with gzip.open(data_folder() / "corpus" / "enwiki_part.txt.gz", "rt", encoding="utf-8") as file:
        for line in file:
            found += split_sentences(line)
            if len(found) >= number:
                break
    return found[:number]


def export(folder: Path) -> None:
    """Write MiniLM as model.onnx, and with dynamic per-channel weight quantisation as model-int8.onnx."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from transformers import BertModel

    model = BertModel.from_pretrained(minilm_folder(), attn_implementation="eager", add_pooling_layer=False).eval()
    ids = torch.randint(1000, 2000, (3, 17))
    mask = torch.ones_like(ids)
    mask[1, 9:] = 0
    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            _LastHiddenState(model).eval(),
            (ids, mask),
            folder / "model.onnx",
            input_names=["input_ids", "attention_mask"],
            dynamo=True,
            dynamic_shapes=(axes, axes),
            external_data=False,
            verbose=False,
        )
    quantize_dynamic(folder / "model.onnx", folder / "model-int8.onnx", weight_type=QuantType.QInt8, per_channel=True)


class _LastHiddenState(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def predictor_of(side: str) -> Predictor:
    """Open the model as one of our sides computes with it."""
    how = {"int8": True} if COMPUTED[side] == "int8" else {"precision": COMPUTED[side]}
    return Predictor.load(minilm_folder(), max_length=MAX_LENGTH, **how)


def make_side(name: str, folder: Path, num_threads: int) -> Embed:
    """Return the function of a side that maps sentences to unit vectors."""
    if name.startswith("ours"):
        predictor = predictor_of(name)
        return lambda texts: predictor.encode(texts, normalize=True)
    if name == "sentence_transformers":
        from sentence_transformers import SentenceTransformer

        model = SentenceTransformer(str(minilm_folder()), device="cpu")
        return lambda texts: model.encode(texts, show_progress_bar=False)
    return onnxruntime_side(
        folder / ("model-int8.onnx" if "int8" in name else "model.onnx"), num_threads, is_sorted="given" not in name
    )


def onnxruntime_side(path: Path, num_threads: int, *, is_sorted: bool) -> Embed:
    """Return a function that tokenises with the tokenizers library and runs onnxruntime on padded batches of 32."""
    import onnxruntime
    from tokenizers import Tokenizer

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = num_threads
    session = onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_file(str(minilm_folder() / "tokenizer.json"))
    tokenizer.enable_truncation(MAX_LENGTH)
    tokenizer.no_padding()

    def run(texts: list[str]) -> np.ndarray:
        encodings = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
        lengths = np.array([len(ids) for ids in encodings])
        order = np.argsort(-lengths, kind="stable") if is_sorted else np.arange(len(texts))
        vectors = np.empty((len(texts), 384), dtype=np.float32)
        for first in range(0, len(texts), BATCH_SIZE):
            chosen = order[first : first + BATCH_SIZE]
            mask = (np.arange(lengths[chosen].max()) < lengths[chosen, None]).astype(np.int64)
            ids = np.zeros_like(mask)
            ids[mask == 1] = np.concatenate([encodings[index] for index in chosen])
            hidden = session.run(None, {"input_ids": ids, "attention_mask": mask})[0]
            vectors[chosen] = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    return run


def transformers_side() -> Embed:
    """Return a function that runs transformers' tokenizer and BertModel on the whole list as one batch."""
    from transformers import AutoTokenizer, BertModel

    model = BertModel.from_pretrained(minilm_folder(), add_pooling_layer=False).eval()
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())

    @torch.inference_mode()
    def run(texts: list[str]) -> np.ndarray:
        batch = tokenizer(texts, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
        mask = batch["attention_mask"].unsqueeze(-1)
        hidden = (model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1)
        return torch.nn.functional.normalize(hidden, dim=-1).numpy()

    return run


def compare(sides: dict[str, Embed], texts: list[str]) -> dict[str, float]:
    """Return the largest deviation of each fp32 side from transformers; raises SystemExit when one is above 1e-5."""
    expected = np.concatenate([transformers_side()(texts[first : first + 8]) for first in range(0, len(texts), 8)])
    exact = [name for name in sides if "int8" not in name and "bf16" not in name]
    found = {name: float(np.abs(sides[name](texts) - expected).max()) for name in exact}
    if max(found.values()) > 1e-5:
        raise SystemExit(f"the sides disagree with transformers: {found}")
    return found


def quality(sides: dict[str, Embed], texts: list[str]) -> dict[str, dict[str, float]]:
    """Return, for ours and the rounded sides, cosines to our fp32 vectors and the correlations on STS-B in percent."""
    from scipy.stats import pearsonr, spearmanr

    rows = [line.split("\t") for line in (data_folder() / "glue/STS-B/dev.tsv").read_text("utf-8").splitlines()[1:]]
    scores = [float(row[-1]) for row in rows]
    expected, found = sides["ours"](texts), {}
    for name in (*COMPUTED, "onnxruntime_int8"):
        cosines = (sides[name](texts) * expected).sum(1)
        pairs = sides[name]([row[7] for row in rows] + [row[8] for row in rows])
        similar = (pairs[: len(rows)] * pairs[len(rows) :]).sum(1)
        found[name] = {
            "cosine_mean": float(cosines.mean()),
            "cosine_minimum": float(cosines.min()),
            "below_099": float((cosines < 0.99).mean()),
            "pearson": 100 * float(pearsonr(similar, scores)[0]),
            "spearman": 100 * float(spearmanr(similar, scores)[0]),
        }
    return found


def timed(run: Embed, texts: list[str]) -> tuple[float, float]:
    """Return the wall-clock seconds of a pass and the processor seconds of all its threads."""
    started, busy = time.perf_counter(), time.process_time()
    run(texts)
    return time.perf_counter() - started, time.process_time() - busy


def latency(sides: dict[str, Embed], texts: list[str]) -> dict[str, list[float]]:
    """Return the 50th and 95th percentile of milliseconds per sentence; the sides take turns on groups of sentences."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(TURNS):
        for name in in_turn(list(sides), number):
            time.sleep(PAUSE)
            taken = [timed(sides[name], [text])[0] for text in texts[number::TURNS]]
            seconds[name] += taken[NUM_WAKING:]
    return {name: [1e3 * float(np.percentile(taken, part)) for part in (50, 95)] for name, taken in seconds.items()}


def time_by_part(run: Embed, passes: list[list[str]]) -> dict[str, float]:
    """Return the mean seconds of a pass and, of these, those in each kind of call, which timing lengthens a little."""
    from maskloom.layers import attention
    from maskloom.layers.processor.int8 import Int8Dense
    from maskloom.layers.processor.matrix_products import Dense
    from maskloom.text.tokenizer import Tokenizer

    spent, timed_calls = dict.fromkeys(PARTS, 0.0), ExitStack()
    functions = {
        "products": [(Dense, "forward"), (Dense, "activated"), (Int8Dense, "_transform")],
        "attention": [(attention, "attend")],
        "norms": [(torch.nn.functional, "layer_norm")],
        "tokens": [(Tokenizer, "token_ids_batch")],
    }

    def timing(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            before, started = sum(spent.values()), time.perf_counter()
            result = function(*given, **named)
            spent[part] += time.perf_counter() - started - (sum(spent.values()) - before)  # once if calls are nested
            return result

        return call

    for texts in passes:  # a warm-up
        run(texts)
    with timed_calls:
        for part, places in functions.items():
            for owner, name in places:
                timed_calls.enter_context(mock.patch.object(owner, name, timing(part, getattr(owner, name))))
        started = time.perf_counter()
        for texts in passes:
            run(texts)
        spent["all"] = time.perf_counter() - started
    return {part: seconds / len(passes) for part, seconds in spent.items()}


def bulk_child(side: str, texts: list[str], folder: Path, num_threads: int) -> dict[str, Any]:
    """Embed a file in a child process; return its seconds and its peak resident memory."""
    path = folder / "texts.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    command = [sys.executable, __file__, "--threads", str(num_threads), "--bulk-of", side, path, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    result = {"side": side, "sentences": len(texts), **json.loads(done.stdout.splitlines()[-1])}
    print(result, flush=True)
    return result


def bulk_pass(side: str, path: Path, folder: Path, num_threads: int) -> dict[str, float]:
    """Do the work of `bulk_child`: ours streams from file to file, a peer holds all texts and vectors in memory."""
    started = time.perf_counter()
    if side in BULK_PEERS:  # ours was imported with this script
        importlib.import_module(BULK_PEERS[side])
    imported = time.perf_counter()
    if side in BULK_PEERS:
        run = make_side(side, folder, num_threads)
        np.save(folder / "out.npy", run(path.read_text("utf-8").split("\n")[:-1]))
    else:
        embed(predictor_of(side), path, folder / "out.npy", normalize=True)
    seconds = time.perf_counter() - imported
    return {"seconds": seconds, "imports": imported - started, "peak_mib": memory_kib("VmHWM") / 1024}


def versions() -> dict[str, str]:
    """Return the versions of the compared packages."""
    from importlib.metadata import version

    names = ("torch", "sentence-transformers", "transformers", "onnxruntime", "tokenizers")
    return {name: version(name) for name in names}


if __name__ == "__main__":
    main()
