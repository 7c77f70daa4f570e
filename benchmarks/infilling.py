"""How often a small BART fills a blank with the right number of words and the right words (Lewis et al. 2019, 2.2).

A BART of two layers, 128 wide, is pre-trained on English Wikipedia by text infilling, otherwise as the recipe bart-mini
says, on 6 million tokens a run. In other paragraphs, one span of one to six tokens is replaced by one mask. The decoder
reads the text up to the span; a fill is right if the most probable tokens are those of the span, followed by the token
after it. Copying goes on with the text after the mask; the other baseline always fills in the most common token.
transformers computes the predictions, from the folder that maskloom wrote.

    python benchmarks/infilling.py --out ~/infilling --results results/infilling
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from denoising import kept, settings
from surroundings import data_folder, machine, parser_of_runs, write_real_text, write_results
from translation import command, resumed, spread

_MEGABYTES, _SPANS, _LONGEST = 20, 2000, 6
_LENGTHS = (24, 100)  # of paragraphs, in tokens


def main() -> None:
    """Run whatever is not finished, and write the page."""
    parser = parser_of_runs(__doc__, seeds=1, jobs=2)
    parser.add_argument("--steps", type=int, default=1500, help="steps of pre-training, of 32 x 128 tokens")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    text = kept(options.out / "scores" / "text.json", lambda: prepare(options.out))
    with ThreadPoolExecutor(options.jobs) as pool:
        losses = list(pool.map(lambda seed: pretrained(options, seed), range(options.seeds)))
    blanks = chosen_blanks(options.out)
    scores = [
        kept(options.out / "scores" / f"filled-{seed}.json", partial(filled, options, seed, blanks))
        for seed in range(options.seeds)
    ]
    if options.results:
        write_page(options, text, losses, scores, blanks)


def prepare(out: Path) -> str:
    """Write the text, its vocabulary and its corpus; return a description of the text."""
    text = write_real_text(out / "text.txt", _MEGABYTES * 1_000_000)
    command("vocab", "train", str(out / "text.txt"), "--size", "4000", "--out", str(out / "vocab"))
    command("corpus", "build", str(out / "text.txt"), "--vocab", str(out / "vocab"), "--out", str(out / "corpus"))
    return text


def pretrained(options: argparse.Namespace, seed: int) -> float:
    """Pre-train a BART, and return its held-out loss in nats per token."""
    folder = options.out / "runs" / f"bart-{seed}"

    def make() -> float:
        values = settings("denoising.permute_sentences=0.0", "training.save_every=250")
        much = ("--recipe", "bart-mini", "--size", "tiny", "--steps", str(options.steps), "--seed", str(seed))
        inputs = ("--corpus", str(options.out / "corpus"), "--out", str(folder))
        command("pretrain", *inputs, *much, *resumed(folder), *values)
        return json.loads((folder / "metrics.json").read_text(encoding="utf-8"))["loss"]

    return kept(options.out / "scores" / f"{folder.name}.json", make)


def chosen_blanks(out: Path) -> list[tuple[list[int], int, int]]:
    """Return the token ids of paragraphs behind the training text, each with the start and the end of its span."""
    from maskloom.text.tokenizer import Tokenizer

    tokenizer, draw, found = Tokenizer.load(out / "vocab"), random.Random(0), []
    with gzip.open(data_folder() / "corpus" / "enwiki_part.txt.gz", "rb") as file:
        file.seek(_MEGABYTES * 1_100_000)
        for line in file.read(8_000_000).decode("utf-8", "ignore").split("\n")[1:]:
            ids = tokenizer.encode(line).ids[1:-1]
            if _LENGTHS[0] <= len(ids) <= _LENGTHS[1]:
                size = draw.randint(1, _LONGEST)
                start = draw.randrange(1, len(ids) - size)
                found.append((ids, start, start + size))
            if len(found) == _SPANS:
                break
    return found


def filled(options: argparse.Namespace, seed: int, blanks: list[tuple[list[int], int, int]]) -> dict[str, int]:
    """Return how many fills are right, by length of the span."""
    import torch
    from transformers import BartForConditionalGeneration

    from maskloom.text.tokenizer import Tokenizer

    folder = options.out / "runs" / f"bart-{seed}" / "model"
    model, vocabulary = BartForConditionalGeneration.from_pretrained(folder).eval(), Tokenizer.load(folder).vocabulary
    first, last = Tokenizer.load(folder).encode("").ids
    starts = [] if model.config.decoder_start_token_id == first else [model.config.decoder_start_token_id]
    right: Counter[int] = Counter()
    with torch.inference_mode():
        for ids, begin, end in blanks:
            source = [first, *ids[:begin], vocabulary.mask_id, *ids[end:], last]
            read = [*starts, first, *ids]
            logits = model(torch.tensor([source]), decoder_input_ids=torch.tensor([read])).logits[0]
            place = begin + len(starts)  # that predicts the first token of the span
            found = logits[place : place + end - begin + 1].argmax(-1).tolist()
            right[end - begin] += found == [*ids, last][begin : end + 1]
    return {str(size): right[size] for size in range(1, _LONGEST + 1)}


def write_page(
    options: argparse.Namespace,
    text: str,
    losses: list[float],
    scores: list[dict[str, int]],
    blanks: list[tuple[list[int], int, int]],
) -> None:
    """Write the results as JSON and as a Markdown page."""
    sizes = Counter(end - begin for _, begin, end in blanks)
    (most_common, _), *_ = Counter(token for ids, _, _ in blanks for token in ids).most_common(1)
    common = Counter(end - begin for ids, begin, end in blanks if {most_common} == set(ids[begin:end]))
    copied = Counter(
        end - begin for ids, begin, end in blanks if ids[end : 2 * end - begin + 1] == ids[begin : end + 1]
    )
    lines = [
        "# Filling blanks of unknown length by a small BART",
        "",
        "Generated by `python benchmarks/infilling.py --out DIR --results results/infilling`; do not edit.",
        "Recipe `bart-mini` with two layers of width 128 in encoder and decoder and text infilling only was trained",
        f"for {options.steps:,} steps of 32 sequences of 128 tokens ({text}; held-out loss {spread(losses, 2)} nats).",
        f"In {len(blanks):,} other paragraphs, one span of tokens is replaced by one mask. A fill is right if each",
        "token of the span, and then the token after it, has the highest probability, given the text before it.",
        "*Most common token* knows the length: it is right if the span has only that token. *Copying* goes on with the",
        "text after the mask instead.",
        "Percentages" + ("." if options.seeds == 1 else f"; mean and standard deviation over {options.seeds} seeds."),
        "",
        "| tokens in the span | blanks | BART | most common token | copying |",
        "|---|---|---|---|---|",
    ]
    for size in [*range(1, _LONGEST + 1), None]:
        chosen = sizes.keys() if size is None else [size]
        total = sum(sizes[one] for one in chosen)
        found = [100 * sum(score[str(one)] for one in chosen) / total for score in scores]
        others = (f"{100 * sum(one[length] for length in chosen) / total:.1f}" for one in (common, copied))
        lines.append(f"| {size or 'all'} | {total:,} | {spread(found)} | {' | '.join(others)} |")
    lines += ["", f"{machine()}."]
    content = {"steps": options.steps, "losses": losses, "blanks": dict(sizes), "right": scores}
    content |= {"most_common": dict(common), "copied": dict(copied)}
    write_results(options.results, content, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
