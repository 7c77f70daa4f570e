"""Time GPT's training step and its text generation against transformers, in turn, on real text.

Training: our loop, including drawing rows, against OpenAIGPTLMHeadModel with fused AdamW and gradient clipping, as
shipped, keeping memory as we do and, with --compiled, under torch.compile. All have the same sizes and read the same
rows; the peer's tensors are created beforehand. Each side is a separate process. Before timing, both losses must agree
without dropout.

Generation: 128 tokens, greedy, after prompts of 32, by a GPT in GPT-2's layout, since OpenAIGPT has no cache in
transformers; both must generate the same tokens.

    python benchmarks/gpt_speed.py [--jobs train generate] [--sizes tiny mini base] [--rounds 5] [--compiled]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from pretraining_step import gemm_peak
from rounds import KEEPING, KEEPING_SAID, OWN, in_turn, memory_of, order_said, quiet_load, rates_of_processes, reached
from surroundings import noted, processor, versions, write_real_text, write_results

from maskloom.checkpoints.huggingface import load_model, save_model
from maskloom.data.batch import PretrainingBatch
from maskloom.data.corpus.opening import Corpus
from maskloom.data.loader import Loader
from maskloom.data.settings import PretrainingData
from maskloom.generation.search import Generation, continue_texts
from maskloom.layers.processor.onednn import pack_for_inference
from maskloom.models.assembled import build_model
from maskloom.models.gpt_config import GptConfig
from maskloom.objectives.masked_lm import MaskedLanguageModeling
from maskloom.objectives.pretraining import PRETRAINING
from maskloom.runs.corpus import build_corpus_from_files, train_vocabulary_from_files
from maskloom.system.devices import chosen_device
from maskloom.text.vocabulary_training import VocabularySettings
from maskloom.training.loop import accumulate_gradients, train_steps
from maskloom.training.optimizers import parameter_groups
from maskloom.training.settings import TrainingSection
from maskloom.training.state import TrainState

NUM_THREADS, VOCABULARY, NUM_TOKENS, PROMPT = 2, 8000, 128, 32
BATCHES = {128: {"tiny": 64, "mini": 32, "small": 16, "base": 8}, 512: {"tiny": 16, "mini": 8, "small": 4, "base": 2}}
TRAINING_AIMS = {"tiny": (1.6, 2.0, 2.5), "mini": (1.2, 1.5, 1.8), "base": (1.1, 1.3, 1.5)}
GENERATION_AIMS = {"mini": (1.5, 2.0, 3.0), "base": (1.1, 1.3, 1.6)}
OURS, PEER = OWN, "transformers"
KEPT, COMPILED = f"{PEER}{KEEPING}", f"{PEER}, compiled{KEEPING}"
PEERS = ("transformers",)
_GENERATION = f"generation of {NUM_TOKENS} tokens"


def main() -> None:
    """Run the requested measurements and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="*", default=["train", "generate"], choices=["train", "generate"])
    parser.add_argument("--sizes", nargs="*", default=["tiny", "mini", "base"], choices=list(BATCHES[128]))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compiled", action="store_true", help="the peer under torch.compile as well")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("gpt_speed"))
    parser.add_argument("--side", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(NUM_THREADS)
    if options.side:
        name, corpus, place, size, length = options.side
        training_side(name, Path(corpus), Path(place), size, int(length))
        return
    load, results = quiet_load(), []
    with tempfile.TemporaryDirectory() as folder:
        corpus, text = real_corpus(Path(folder))
        for size in options.sizes if "train" in options.jobs else ():
            for length in BATCHES:
                results.append(train(corpus, size, length, options.rounds, options.compiled, Path(folder)))
                print(results[-1], flush=True)
        for size in (size for size in options.sizes if "generate" in options.jobs and size in GENERATION_AIMS):
            for batch in (1, 8):
                results.append(generate(corpus, size, batch, options.rounds, Path(folder)))
                print(results[-1], flush=True)
    measured = {result["what"] for result in results}
    kept = [row for row in former_results(options.out, text) if row["what"] not in measured]
    results = [*kept, *results]
    write_files(options.out, page, PEERS, load=load, text=text, results=results, summary=summary_rows(results))


def former_results(path: Path, text: str) -> list[dict[str, Any]]:
    """Return the stored results of earlier runs on the same machine and text, each with the run that gave it."""
    content = json.loads(path.with_suffix(".json").read_text()) if path.with_suffix(".json").exists() else {}
    if (content.get("machine"), content.get("text")) != (machine_name(*PEERS), text):
        return []
    run = f"load at the start {content['load']:.2f}, `{content['command']}`"
    return [{"run": run, **result} for result in content["results"]]


def machine_name(*peers: str) -> str:
    """Return the processor, the number of threads and the versions, with those of the peers' packages."""
    return f"{processor()}, {NUM_THREADS} threads; {versions(*peers)}"


def real_corpus(folder: Path) -> tuple[Corpus, str]:
    """Return a byte-pair-encoded corpus of real English, and a description of its text."""
    text = folder / "text.txt"
    described = write_real_text(text, 6_000_000)
    train_vocabulary_from_files([text], VocabularySettings(VOCABULARY, model="bpe"), out=folder / "vocab")
    build_corpus_from_files([text], vocab=folder / "vocab", out=folder / "corpus")
    return Corpus.open(folder / "corpus"), described


def config_of(size: str, corpus: Corpus, **more: Any) -> GptConfig:
    """Return the configuration of a GPT of a size."""
    return GptConfig.of_size(size, vocab_size=len(corpus.vocabulary), **more)  # pyright: ignore[reportArgumentType]


def train(corpus: Corpus, size: str, length: int, rounds: int, compiled: bool, folder: Path) -> dict[str, Any]:
    """Return tokens per second of all sides at a model size and row length, each side in a separate process."""
    from transformers import OpenAIGPTLMHeadModel

    model = build_model(config_of(size, corpus), ("lm",), seed=0)
    place = folder / f"{size}-{length}"
    save_model(model, place)
    loader, _ = rows_of_text(corpus.folder, size, length)
    peer = OpenAIGPTLMHeadModel.from_pretrained(place)
    difference = check_losses(model, loader.next_batch({})[0], peer, length)
    names = (OURS, PEER, KEPT, *([COMPILED] if compiled else []))
    given, peaks = [str(corpus.folder), str(place), size, str(length)], list[float]()
    rates = rates_of_processes(dict.fromkeys(names, given), rounds, before_each=lambda: peaks.append(gemm_peak()))
    found = {"what": f"training, {size}, rows of {length}", "aims": TRAINING_AIMS.get(size), "difference": difference}
    return found | {
        "peak": statistics.median(peaks),
        "flops": useful_flops(model.encoder.config, length),
        "rates": rates,
    }


def useful_flops(config: Any, length: int) -> float:
    """Return the operations that training needs per token: backward is twice forward, and half of the scores count."""
    hidden, layers = config.hidden_size, config.num_hidden_layers
    return 3.0 * (24 * hidden**2 * layers + 2 * hidden * layers * length + 2 * hidden * config.vocab_size)


def shares_of_peak(result: dict[str, Any], rates: Sequence[float], peer: Sequence[float]) -> str:
    """Return what useful work on each side reaches of the rate of a large matrix product, for a cell of the table."""
    if "peak" not in result:
        return "-"
    shares = (100 * statistics.median(side) * result["flops"] / result["peak"] for side in (rates, peer))
    return " / ".join(f"{share:.0f}%" for share in shares)


LEVELS = "reached (floor / target / stretch)"
PEAK_SAID = (
    "*Of peak*, ours / peer: useful work (real tokens, backward twice forward) as a share of the rate of a 2048-cube "
    "matrix product, by MKL or oneDNN, whichever is faster, measured before every round. A ratio of r needs r times "
    "the peer's share, which cannot exceed 100%."
)


def rows_of_text(corpus: Path, size: str, length: int) -> tuple[Loader[PretrainingBatch], int]:
    """Return the loader of the batches that both sides read, and the number of sequences per batch."""
    number = BATCHES[length][size]
    data = PretrainingData(max_length=length)
    return PRETRAINING["causal_lm"].loader(Corpus.open(corpus), None, data, batch_size=number, seed=0), number


def training_side(name: str, corpus: Path, place: Path, size: str, length: int) -> None:
    """For every line of standard input, print the tokens per second of a few steps."""
    from transformers import OpenAIGPTLMHeadModel

    chosen_device("cpu")  # as in every command
    loader, number = rows_of_text(corpus, size, length)
    settings = TrainingSection(steps=10**6, batch_size=number, learning_rate=1e-4, num_threads=NUM_THREADS)
    if name == OURS:
        state = TrainState.fresh(load_model(place)[0], settings)
        objective = MaskedLanguageModeling("lm", None)
        steps = train_steps(state, objective, loader.next_batch, settings=settings, seed=0)
        step: Callable[[torch.Tensor], Any] = lambda _: next(steps)  # noqa: E731
    else:
        peer = OpenAIGPTLMHeadModel.from_pretrained(place)
        if name == COMPILED:
            peer.compile()
        step = peer_step(peer, lambda ids: peer(input_ids=ids, labels=ids).loss)
    position: dict[str, int] = {}
    with memory_of(name):
        for _ in sys.stdin:
            batches = []
            for _ in range({"tiny": 4, "mini": 2}.get(size, 1)):
                batch, position = loader.next_batch(position)
                batches.append(torch.from_numpy(batch.token_ids).view(-1, length))
            started = time.perf_counter()
            for ids in batches:
                step(ids)
            print(sum(ids.numel() for ids in batches) / (time.perf_counter() - started), flush=True)


def peer_step(peer: Any, loss: Callable[[Any], torch.Tensor], learning_rate: float = 1e-4) -> Callable[[Any], None]:
    """Return a function that takes a training step of a peer on inputs of its loss, as in transformers' Trainer."""
    optimizer = torch.optim.AdamW(parameter_groups(peer, 0.01), lr=learning_rate, eps=1e-6, fused=True)
    peer.train()

    def step(inputs: Any) -> None:
        loss(inputs).backward()
        torch.nn.utils.clip_grad_norm_(peer.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def check_losses(model: Any, batch: PretrainingBatch, peer: Any, length: int) -> float:
    """Return the difference of both sides' losses without dropout; raises SystemExit when it is above 1e-4."""
    ours = accumulate_gradients(model.eval(), MaskedLanguageModeling("lm", None), batch, None)["lm"]
    with torch.no_grad():
        logits = peer.eval()(torch.from_numpy(batch.token_ids).view(-1, length)).logits
        theirs = torch.nn.functional.cross_entropy(logits.flatten(0, 1), torch.from_numpy(batch.mlm_labels))
    if (difference := abs(ours - float(theirs))) > 1e-4:
        raise SystemExit(f"the losses differ: {ours} and {float(theirs)}")
    return difference


def generate(corpus: Corpus, size: str, batch: int, rounds: int, folder: Path) -> dict[str, Any]:
    """Return tokens per second of both sides at a model size and number of prompts."""
    from transformers import GPT2LMHeadModel

    model = build_model(config_of(size, corpus, pre_norm=True, initializer_range=0.1), ("lm",), seed=0).eval()
    place = folder / f"{size}-generate-{batch}"
    save_model(model, place)
    pack_for_inference(model, decodes=True)  # as in maskloom.load
    peer = GPT2LMHeadModel.from_pretrained(place, attn_implementation="sdpa").eval()
    prompts = torch.from_numpy(corpus.sentences(0, 400)[: batch * PROMPT].astype("int64")).view(batch, PROMPT)
    how = {"do_sample": False, "max_new_tokens": NUM_TOKENS, "pad_token_id": 0, "eos_token_id": None}

    def ours() -> list[list[int]]:
        found = continue_texts(model, prompts.tolist(), Generation(max_tokens=NUM_TOKENS, temperature=0.0))
        return [text.token_ids for text in found]

    def theirs() -> list[list[int]]:
        with torch.inference_mode():
            return peer.generate(prompts, attention_mask=torch.ones_like(prompts), **how)[:, PROMPT:].tolist()

    same = sum(a == b for one, other in zip(ours(), theirs(), strict=True) for a, b in zip(one, other, strict=True))
    rates: dict[str, list[float]] = {OURS: [], PEER: []}
    for number in range(rounds):
        for name, run in in_turn([(OURS, ours), (PEER, theirs)], number):
            started = time.perf_counter()
            run()
            rates[name].append(batch * NUM_TOKENS / (time.perf_counter() - started))
    what = f"{_GENERATION}, {size}, {batch} prompt{'s' if batch > 1 else ''}"
    equal = same / (batch * NUM_TOKENS)
    return {"what": what, "aims": GENERATION_AIMS.get(size), "equal_tokens": equal, "rates": rates}


def summary_rows(results: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the rows of the README's table."""
    rows: dict[tuple[str, str, str], list[tuple[str, str]]] = {}
    for result in results:
        job, size, last = result["what"].split(", ")
        for name in (name for name in (PEER, KEPT) if name in result["rates"]):
            pairs = zip(result["rates"][OURS], result["rates"][name], strict=True)
            ratio = statistics.median(ours / theirs for ours, theirs in pairs)
            rows.setdefault((job, last, name), []).append((size, f"{ratio:.2f}"))
    model, generation = "OpenAIGPTLMHeadModel", "generate with its cache"
    named = (
        ("training", "rows of 128", PEER, "GPT training step", f"transformers' {model}, rows of 128 tokens"),
        ("training", "rows of 128", KEPT, "GPT training step", f"{KEPT}, rows of 128 tokens"),
        ("training", "rows of 512", PEER, "GPT training step", f"transformers' {model}, rows of 512 tokens"),
        ("training", "rows of 512", KEPT, "GPT training step", f"{KEPT}, rows of 512 tokens"),
        (_GENERATION, "1 prompt", PEER, "GPT, 128 more tokens", f"transformers' {generation}, 1 prompt"),
        (_GENERATION, "8 prompts", PEER, "GPT, 128 more tokens", f"transformers' {generation}, 8 prompts"),
    )
    return [
        {
            "job": f"{job}, {' / '.join(size for size, _ in rows[key])}",
            "beside": beside,
            "result": f"{' / '.join(ratio for _, ratio in rows[key])} times the tokens per second",
        }
        for *place, job, beside in named
        if (key := (place[0], place[1], place[2])) in rows
    ]


def page(content: dict[str, Any]) -> str:
    """Return the page of stored figures as Markdown."""
    results = content["results"]
    rounds = min(len(rates) for result in results for rates in result["rates"].values())
    has_peak = any("peak" in result for result in results)
    lines = [
        "# GPT: training and generation",
        "",
        f"{order_said(rounds)} Tokens per second, median of the rounds; ratio of ours to the peer with its range. "
        f"Text: {content['text']}; a vocabulary of {VOCABULARY:,} (BPE).",
        "",
        *compared(results),
        *([KEEPING_SAID, ""] if any(KEPT in result["rates"] for result in results) else []),
        *noted(content),
        *([PEAK_SAID, ""] if has_peak else []),
        f"| job | maskloom | peer | tokens/s | ratio | {LEVELS} |{' of peak |' if has_peak else ''}",
        "|---" * (6 + has_peak) + "|",
    ]
    for result in results:
        ours = result["rates"][OURS]
        for name in (name for name in result["rates"] if name != OURS):
            peer = result["rates"][name]
            ratios = [a / b for a, b in zip(ours, peer, strict=True)]
            middle, aims = statistics.median(ratios), None if name == COMPILED else result["aims"]
            share = f" {shares_of_peak(result, ours, peer)} |" if has_peak else ""
            lines.append(
                f"| {result['what']} | {statistics.median(ours):,.0f} | {name} | {statistics.median(peer):,.0f} | "
                f"{middle:.2f} ({min(ratios):.2f}-{max(ratios):.2f}) | {reached(middle, aims)} |{share}"
            )
    checks = [
        f"{result['what']}: {100 * result['equal_tokens']:.0f}%" for result in results if "equal_tokens" in result
    ]
    if differences := [result["difference"] for result in results if "difference" in result]:
        lines += ["", f"Before timing, the losses of both sides differ by at most {max(differences):.1e} nats."]
    if checks:
        lines += ["", f"Generated tokens that are equal on both sides: {'; '.join(checks)}."]
    for run in dict.fromkeys(result["run"] for result in results if "run" in result):
        rows = "; ".join(result["what"] for result in results if result.get("run") == run)
        lines += ["", f"Measured in an earlier run on the same machine ({run}): {rows}."]
    return "\n".join([*lines, *made_by(content)])


def compared(results: list[dict[str, Any]]) -> list[str]:
    """Return a paragraph on each job of the page: what both sides do."""
    jobs = [result["what"].split(", ") for result in results]
    sizes = dict.fromkeys(size for job, size, _ in jobs if job == "training")
    rows = ", ".join(f"{size} {' / '.join(str(BATCHES[length][size]) for length in BATCHES)}" for size in sizes)
    lines = []
    if sizes:
        lines += [
            "Training: the peer is transformers' `OpenAIGPTLMHeadModel` with its own attention, the only one that it "
            "has, fused AdamW and gradient clipping; its tensors are ready before the clock starts, while ours "
            f"includes drawing its rows. Rows per batch, of {' / '.join(map(str, BATCHES))} tokens: {rows}.",
            "",
        ]
    if any(job != "training" for job, *_ in jobs):
        lines += [
            f"Generation: {NUM_TOKENS} tokens, greedy, after prompts of {PROMPT} tokens of the text, by a GPT in "
            "GPT-2's layout with random weights. The peer is `generate` of transformers' `GPT2LMHeadModel`, with its "
            "cache and sdpa.",
            "",
        ]
    return lines


def write_files(path: Path, page: Callable[[dict[str, Any]], str], peers: Sequence[str], **figures: Any) -> None:
    """Write the figures with the command, the machine and the versions as PATH.json, and their page as PATH.md."""
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    content = {"command": command, "machine": machine_name(*peers), "cores": os.cpu_count(), **figures}
    write_results(path, content, page(content))
    print(page(content))


def made_by(content: dict[str, Any]) -> list[str]:
    """Return the last lines of a page: the machine with the versions, the load and the command."""
    machine, load = content["machine"], content["load"]
    return ["", f"{machine}; load at the start {load:.2f}. Generated by `{content['command']}`.", ""]


if __name__ == "__main__":
    main()
