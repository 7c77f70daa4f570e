"""Static instances compared with Google's own generator, bert-tensorflow 1.0.4, on the same random numbers."""

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.google_instances import GoogleInstance, google_instances

from maskloom.errors import ConfigError
from maskloom.text.vocabulary import Vocabulary

pytestmark = pytest.mark.parity

# The generator imports TensorFlow, absl and six for flags, files, logging and Python 2; stand-ins replace them.
_ORACLE = """
import json, random, sys, types
names = ("tensorflow", "tensorflow.compat", "tensorflow.compat.v1", "absl", "absl.flags", "six")
modules = {name: types.ModuleType(name) for name in names}
sys.modules.update(modules)
modules["tensorflow"].compat = modules["tensorflow.compat"]
tf = modules["tensorflow.compat"].v1 = modules["tensorflow.compat.v1"]
ignore = lambda *args, **kwargs: None
tf.flags = types.SimpleNamespace(FLAGS=None, DEFINE_string=ignore, DEFINE_bool=ignore, DEFINE_integer=ignore,
                                 DEFINE_float=ignore)
tf.gfile = types.SimpleNamespace(GFile=lambda name, mode: open(name, mode, encoding="utf-8", newline="\\n"))
tf.logging = types.SimpleNamespace(info=ignore)
modules["six"].PY2, modules["six"].PY3 = False, True
flags = modules["absl"].flags = modules["absl.flags"]
flags.DEFINE_bool, flags.FLAGS = ignore, types.SimpleNamespace(preserve_unused_tokens=False)
from bert import create_pretraining_data as oracle, tokenization
request = json.load(sys.stdin)
tokenizer = tokenization.FullTokenizer(request["vocabulary"], do_lower_case=True)
answers = []
for case in request["cases"]:
    documents = [[]]
    for path in case["paths"]:
        for line in open(path, encoding="utf-8", newline="\\n"):
            if not line.strip():
                documents.append([])
            documents[-1].append(tokenizer.tokenize(line.strip()))
    instances = oracle.create_training_instances(
        case["paths"], tokenizer, case["max_length"], case["dupe_factor"], case["short_seq_prob"],
        case["masked_lm_prob"], case["max_predictions_per_seq"], random.Random(case["seed"]))
    answers.append({"documents": documents, "instances": [
        [i.tokens, i.segment_ids, bool(i.is_random_next), i.masked_lm_positions, i.masked_lm_labels]
        for i in instances]})
json.dump(answers, sys.stdout)
"""


def _ask_oracle(cases: list[dict[str, Any]], vocabulary: Path) -> list[dict[str, Any]]:
    pytest.importorskip("bert", reason="the oracle package bert-tensorflow is not installed")
    done = subprocess.run(
        [sys.executable, "-c", _ORACLE],
        input=json.dumps({"cases": cases, "vocabulary": str(vocabulary)}),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def _ours(case: dict[str, Any], documents: list[list[list[str]]], vocabulary: Vocabulary) -> list[GoogleInstance]:
    settings = {name: value for name, value in case.items() if name not in ("paths", "seed")}
    return google_instances(documents, vocabulary.tokens, rng=random.Random(case["seed"]), **settings)


def _plain(instance: GoogleInstance) -> list[Any]:
    return [
        instance.tokens,
        instance.segment_ids,
        instance.is_random_next,
        instance.masked_positions,
        instance.masked_labels,
    ]


def _assert_equal(case: dict[str, Any], answer: dict[str, Any], vocabulary: Vocabulary) -> None:
    ours = [_plain(instance) for instance in _ours(case, answer["documents"], vocabulary)]
    assert len(ours) == len(answer["instances"]) > 0
    for number, (found, expected) in enumerate(zip(ours, answer["instances"], strict=True)):
        assert found == expected, f"instance {number} of case {case}"


def _case(paths: list[Path], seed: int, **changes: Any) -> dict[str, Any]:
    settings = {
        "max_length": 128,
        "dupe_factor": 2,
        "short_seq_prob": 0.1,
        "masked_lm_prob": 0.15,
        "max_predictions_per_seq": 20,
    }
    return {"paths": [str(path) for path in paths], "seed": seed, **settings, **changes}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return files of English prose from the language reference, a sentence per line, and of unusual documents."""
    from pydoc_data.topics import topics

    folder = tmp_path_factory.mktemp("texts")
    names = sorted(topics)[:15]
    prose = "\n\n".join("\n".join(line for line in topics[name].splitlines() if line.strip()) for name in names)
    odd = "\n\n\nOne sentence only.\n\nword\n\n" + "very long sentence without end " * 120 + "\n\n \n***\n\u200b\n\n"
    (folder / "prose.txt").write_text(prose + "\n\n", encoding="utf-8")
    (folder / "odd.txt").write_text(odd + "Straße, naïve 東京.\nThe second sentence.", encoding="utf-8")
    (folder / "one.txt").write_text("A single document.\nOf three sentences.\nNo more.\n", encoding="utf-8")
    return [folder / "prose.txt", folder / "odd.txt", folder / "one.txt"]


def test_instances_equal_the_oracle_on_prose(texts: list[Path], minilm_folder: Path) -> None:
    vocabulary = Vocabulary.load(minilm_folder / "vocab.txt")
    prose, odd, one = texts
    cases = [
        _case([prose, odd], 12345),
        _case([prose, odd], 0, max_length=64, dupe_factor=1, short_seq_prob=1.0, max_predictions_per_seq=5),
        _case([prose], 1, max_length=512, dupe_factor=3, max_predictions_per_seq=80),
        _case([prose, odd], 2, max_length=32, dupe_factor=1, short_seq_prob=0.0, masked_lm_prob=0.4),
        _case([odd], 3, max_length=5, dupe_factor=5, short_seq_prob=0.5),
        _case([odd], 4, max_length=17, dupe_factor=20, short_seq_prob=0.5),
        _case([one], 5, max_length=16, dupe_factor=10),
    ]
    for case, answer in zip(cases, _ask_oracle(cases, minilm_folder / "vocab.txt"), strict=True):
        _assert_equal(case, answer, vocabulary)


@pytest.mark.realdata
def test_instances_equal_the_oracle_on_the_published_sample(data_folder: Path, minilm_folder: Path) -> None:
    vocabulary = Vocabulary.load(minilm_folder / "vocab.txt")
    sample = data_folder / "corpus" / "sample_text.txt"
    cases = [_case([sample], seed, dupe_factor=5) for seed in (12345, 7)]
    for case, answer in zip(cases, _ask_oracle(cases, minilm_folder / "vocab.txt"), strict=True):
        _assert_equal(case, answer, vocabulary)


def _tokens(num_documents: int, seed: int) -> list[list[list[str]]]:
    rng = random.Random(seed)
    pieces = ["the", "cat", "un", "##want", "##ed", "run", "##ning", ",", ".", "a"]
    return [
        [[rng.choice(pieces) for _ in range(rng.randint(1, 12))] for _ in range(rng.randint(1, 9))]
        for _ in range(num_documents)
    ]


_VOCABULARY = Vocabulary(
    ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "un", "##want", "##ed", "run", "##ning", ",", ".", "a"]
)
_SETTINGS: dict[str, Any] = {
    "max_length": 40,
    "dupe_factor": 3,
    "short_seq_prob": 0.1,
    "masked_lm_prob": 0.15,
    "max_predictions_per_seq": 20,
}


def test_whole_words_are_masked_whole_or_not_at_all() -> None:
    instances = google_instances(
        _tokens(30, 1), _VOCABULARY.tokens, rng=random.Random(1), whole_word_masking=True, **_SETTINGS
    )
    split_replacements = 0
    for instance in instances:
        original = list(instance.tokens)
        for position, label in zip(instance.masked_positions, instance.masked_labels, strict=True):
            original[position] = label
        assert len(instance.masked_positions) <= min(20, max(1, round(0.15 * len(original))))
        words: list[list[int]] = []
        for position, token in enumerate(original):
            if token in ("[CLS]", "[SEP]"):
                continue
            if words and token.startswith("##"):
                words[-1].append(position)
            else:
                words.append([position])
        masked = set(instance.masked_positions)
        for word in words:
            assert masked.issuperset(word) or masked.isdisjoint(word)
            masks = [instance.tokens[position] == "[MASK]" for position in word if position in masked]
            split_replacements += len(set(masks)) == 2
    assert split_replacements > 0, "the replacement is drawn for each piece, not for each word"


def test_without_continuations_whole_words_change_nothing() -> None:
    documents = [[[token.lstrip("#") for token in s] for s in document] for document in _tokens(20, 2)]
    a, b = (
        google_instances(documents, _VOCABULARY.tokens, rng=random.Random(5), whole_word_masking=flag, **_SETTINGS)
        for flag in (False, True)
    )
    assert a == b


def test_input_is_left_alone_and_empty_documents_are_dropped() -> None:
    documents = _tokens(5, 3)
    again = [[list(sentence) for sentence in document] for document in documents]
    plain = google_instances(documents, _VOCABULARY.tokens, rng=random.Random(1), **_SETTINGS)
    assert documents == again
    holes = [[], *[[[], *document, []] for document in documents], [[]]]
    assert google_instances(holes, _VOCABULARY.tokens, rng=random.Random(1), **_SETTINGS) == plain
    assert google_instances([], _VOCABULARY.tokens, rng=random.Random(1), **_SETTINGS) == []


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_length is 4"):
        google_instances([], [], rng=random.Random(1), **{**_SETTINGS, "max_length": 4})
