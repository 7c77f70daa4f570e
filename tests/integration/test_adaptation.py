"""Pre-training continued from a model folder, with its scores before the first step reported next to those after."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from maskloom.checkpoints.huggingface import save_model
from maskloom.config import PretrainRecipe, load_recipe
from maskloom.data.corpus.building import CorpusSettings, build_corpus
from maskloom.errors import ConfigError
from maskloom.models.assembled import build_model
from maskloom.models.bert import BertConfig
from maskloom.runs.pretrain import pretrain
from maskloom.runs.task_summaries import pretraining_lines
from maskloom.text.vocabulary import SPECIAL_TOKENS, Vocabulary
from maskloom.text.wordpiece_tokenizer import WordPieceTokenizer
from maskloom.training.events import read_events

WORDS = [f"w{number}" for number in range(30)]
SETTINGS = ["data.max_length=24", "data.held_out_fraction=0.3", "training.batch_size=4", "training.num_threads=1"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    lines = [" ".join([*WORDS[:3], WORDS[number // 3], *WORDS[:3]]) for number in range(60)]
    (folder / "text.txt").write_text("\n\n".join("\n".join(lines[n : n + 3]) for n in range(0, 60, 3)))
    tokenizer = WordPieceTokenizer(Vocabulary([*SPECIAL_TOKENS, *WORDS]))
    build_corpus(
        [folder / "text.txt"], tokenizer=tokenizer, out=folder / "corpus", settings=CorpusSettings(sentences="lines")
    )
    return folder / "corpus"


def model_folder(folder: Path, heads: tuple[str, ...], *, tokens: list[str] | None = None, num_rows: int = 0) -> Path:
    vocabulary = Vocabulary([*SPECIAL_TOKENS, *(tokens or WORDS)])
    config = BertConfig(
        vocab_size=len(vocabulary) + num_rows,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=32,
    )
    save_model(build_model(config, heads=heads, seed=3), folder)
    WordPieceTokenizer(vocabulary, max_length=32).save(folder)
    return folder


class Sayings:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def begin(self, *_: Any) -> None: ...

    def advance(self, *_: Any, **__: Any) -> None: ...

    def end(self) -> None: ...


def run(corpus: Path, out: Path, init: Path | None, *changes: str, **options: Any) -> tuple[dict[str, Any], list[str]]:
    recipe = load_recipe(PretrainRecipe, None, [*SETTINGS, "training.steps=6", "training.save_every=2", *changes])
    said = Sayings()
    return pretrain(recipe, corpus=corpus, out=out, init=init, progress=said, **options), said.lines  # type: ignore[arg-type]


def starts(out: Path) -> list[dict[str, Any]]:
    events = read_events(out / "events.jsonl")
    return [event for event in events if (event["event"], event.get("step")) == ("evaluation", 0)]


def test_the_initial_weights_are_evaluated_before_step_1_and_stand_beside_the_end(corpus: Path, tmp_path: Path) -> None:
    init = model_folder(tmp_path / "init", ("mlm", "nsp"))
    # a rate this small trains nothing, so the same weights are evaluated on the same instances before and after
    result, said = run(corpus, tmp_path / "still", init, "training.learning_rate=1e-30")
    after = {key: value for key, value in result.items() if key != "before"}
    assert result["before"] == pytest.approx(after)
    assert [line for line in said if line.startswith("before step 1: held-out MLM loss")]
    assert not [line for line in said if line.startswith("random weights")]
    result, _ = run(corpus, tmp_path / "trained", init, "training.learning_rate=0.01", "training.steps=15")
    assert result["mlm_loss"] < result["before"]["mlm_loss"] == pytest.approx(after["mlm_loss"])
    (start,) = starts(tmp_path / "trained")
    assert start["metrics"] == result["before"]
    table = pretraining_lines(result)
    assert table[0].split() == ["held", "out", "before", "after"]
    assert table[1].split()[-2:] == [f"{result['before']['mlm_loss']:.3f}", f"{result['mlm_loss']:.3f}"]
    assert json.loads((tmp_path / "trained" / "metrics.json").read_text()) == result


def test_a_resumed_run_knows_what_was_before(corpus: Path, tmp_path: Path) -> None:
    init = model_folder(tmp_path / "init", ("mlm", "nsp"))
    result, _ = run(corpus, tmp_path / "run", init)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "phase-1" / "step-00000006")
    (tmp_path / "run" / "metrics.json").unlink()
    again, said = run(corpus, tmp_path / "run", init, resume=True)
    assert again == result
    assert len(starts(tmp_path / "run")) == 1
    assert [line for line in said if line.startswith("before step 1: ")]


def test_who_reads_the_text_of_the_initial_model_again_is_warned(corpus: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    _, said = run(corpus, first, model_folder(tmp_path / "init", ("mlm", "nsp")))
    assert not [line for line in said if line.startswith("warning")]
    _, said = run(corpus, tmp_path / "again", first / "model")
    (line,) = [line for line in said if line.startswith("warning")]
    assert line.startswith(f"warning: {first} was trained on this corpus, so it has read what this run reads and")


def test_heads_that_a_folder_lacks_are_said_to_be_new(corpus: Path, tmp_path: Path) -> None:
    _, said = run(corpus, tmp_path / "run", model_folder(tmp_path / "init", ()), "data.next_sentence=false")
    (line,) = [line for line in said if line.startswith("random weights, missing from the initial model: ")]
    assert "cls.predictions" in line
    assert "cls.seq_relationship" not in line


def test_a_run_from_scratch_has_nothing_before(corpus: Path, tmp_path: Path) -> None:
    sizes = ("model.config.hidden_size=16", "model.config.num_hidden_layers=1", "model.config.num_attention_heads=2")
    result, said = run(corpus, tmp_path / "run", None, *sizes, "model.config.intermediate_size=16")
    assert "before" not in result
    assert starts(tmp_path / "run") == []
    assert not [line for line in said if line.startswith("before")]


def test_pieces_of_another_vocabulary_of_the_same_size_are_refused(corpus: Path, tmp_path: Path) -> None:
    tokens = [*WORDS[:7], "other", *WORDS[8:]]
    of_both = "vocabulary of 35 pieces differs from the corpus's vocabulary of 35"
    with pytest.raises(ConfigError, match=f"{of_both} from id 12 on, where it has 'other' and the other 'w7'; build"):
        run(corpus, tmp_path / "run", model_folder(tmp_path / "init", ("mlm", "nsp"), tokens=tokens))
    few = model_folder(tmp_path / "a few", ("mlm", "nsp"), tokens=WORDS[:-2])
    with pytest.raises(ConfigError, match="from id 33 on, where it has no piece and the other 'w28'; build"):
        run(corpus, tmp_path / "run", few)
    (few / "vocab.txt").unlink()
    (few / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=f"it embeds 33 pieces, .* built with 35; build .* --vocab '{few}'$"):
        run(corpus, tmp_path / "run", few)
    # embedding rows without a piece are accepted: published models have them
    result, _ = run(corpus, tmp_path / "run2", model_folder(tmp_path / "wide", ("mlm", "nsp"), num_rows=5))
    assert result["before"]
