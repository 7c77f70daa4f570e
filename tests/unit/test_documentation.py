"""Documentation names only what exists: commands, options, recipe keys, files."""

import json
import re
import shlex
import statistics
from pathlib import Path
from typing import Any

import pytest
import typer

from maskloom.cli import app
from maskloom.config import FinetuneRecipe, PretrainRecipe
from maskloom.recipe_files import recipe_keys
from maskloom.runs.task_summaries import describe_metrics, pretraining_lines

REPOSITORY = Path(__file__).parents[2]
PAGES = [page for place in (".", "docs") for page in sorted((REPOSITORY / place).glob("*.md"))]
MADE = [page for place in ("benchmarks", "results") for page in sorted((REPOSITORY / place).glob("*.md"))]
KEYS = {key.path for kind in (PretrainRecipe, FinetuneRecipe) for key in recipe_keys(kind)}
OPEN_SECTIONS = ("model.config.", "class_weights.")
COMMAND = typer.main.get_command(app)


def commands(text: str) -> list[list[str]]:
    """Return the words of every maskloom command in shell blocks and in running text."""
    blocks = re.findall(r"^```(?:sh|)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    rest = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    lines += [" ".join(code.split()) for code in re.findall(r"`(maskloom [^`]+)`", rest)]
    found = []
    for line in lines:
        if match := re.search(r"(?:^|-m )maskloom (.+)", line.strip()):
            try:
                found.append(shlex.split(match[1], comments=True))
            except ValueError:
                found.append(match[1].split())
    return found


def problem_of(words: list[str]) -> str | None:
    """Return what a command line names that does not exist, or None."""
    command: Any = COMMAND
    place = 0
    while hasattr(command, "commands") and place < len(words) and not words[place].startswith("-"):
        if words[place] not in command.commands:
            if words[place].isupper():  # COMMAND is a placeholder for any command
                return None
            return f"no command {words[place]!r}"
        command, place = command.commands[words[place]], place + 1
    options = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    for before, word in zip(["", *words], words, strict=False):
        if word.startswith("--") and word.split("=")[0] not in options | {"--help", "--version"}:
            return f"no option {word}"
        key, is_given, _ = word.partition("=")
        if before in ("--set", "--grid") and is_given and key not in KEYS and not key.startswith(OPEN_SECTIONS):
            return f"no key {key}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_options_and_keys_exist(page: Path) -> None:
    found = {shlex.join(words): problem_of(words) for words in commands(page.read_text(encoding="utf-8"))}
    assert {command: problem for command, problem in found.items() if problem} == {}


@pytest.mark.parametrize("page", [*PAGES, *MADE], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^) ]+)\)", page.read_text(encoding="utf-8"))
    inside = [target for target in targets if not target.startswith(("http://", "https://"))]
    assert [target for target in inside if not leads_somewhere(page, target)] == []


def leads_somewhere(page: Path, target: str) -> bool:
    """Return whether the file of a link exists and contains the heading that the link names."""
    name, _, heading = target.partition("#")
    path = page.parent / name if name else page
    if not path.exists() or not heading:
        return path.exists()
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_a_link_to_a_heading_that_is_gone_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Whose time, and where?\n")
    names = ("page.md#whose-time-and-where", "#whose-time-and-where", "page.md#whose-time", "other.md")
    assert [leads_somewhere(page, name) for name in names] == [True, True, False, False]


def test_the_readme_lists_every_command() -> None:
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    table = text[text.index("## Commands") : text.index("From Python")]
    root: Any = COMMAND
    names = [part for name, inner in root.commands.items() for part in [name, *getattr(inner, "commands", {})]]
    assert [name for name in names if not re.search(rf"`(\w+ )?{name}[ `]", table)] == []


def test_the_page_of_the_architecture_names_every_package_and_the_modules_that_it_lists() -> None:
    text = (REPOSITORY / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8")
    source = REPOSITORY / "src" / "maskloom"
    listed = (source, source / "quickstart", source / "reproduce")
    names = [f"{path.parent.name}/" for path in source.glob("*/__init__.py")]
    names += [path.name for folder in listed for path in folder.glob("*.py") if not path.name.startswith("_")]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_make_is_given_the_torch_of_the_constraints() -> None:
    constraints, *others = (
        (REPOSITORY / name).read_text(encoding="utf-8") for name in ("constraints.txt", "Makefile", "README.md")
    )
    (pinned,) = re.findall(r"^torch==\S+$", constraints, re.MULTILINE)
    assert [{*re.findall(r"TORCH ?\??= ?'?(torch\S*)", text)} for text in others] == [{pinned}, {pinned}]


def test_output_shown_in_the_guides_is_what_commands_print() -> None:
    before = {"mlm_loss": 10.941, "mlm_accuracy": 0.001, "mlm_perplexity": 56_415.7}
    after = {"mlm_loss": 6.498, "mlm_accuracy": 0.088, "mlm_perplexity": 663.9, "unigram_cross_entropy": 7.035}
    table = "\n".join(pretraining_lines({**after, "num_predictions": 1436.0, "before": before}))
    line = describe_metrics({"mlm_loss": 6.98, "unigram_cross_entropy": 7.03})
    docs = REPOSITORY / "docs"
    assert f"\n{table}\n" in (docs / "ADAPTATION.md").read_text(encoding="utf-8")
    assert f"`{line}`" in " ".join((docs / "TROUBLESHOOTING.md").read_text(encoding="utf-8").split())


def test_what_is_wrong_is_found() -> None:
    text = "```sh\nmaskloom vocab train t --max-words 3\n```\n`maskloom frobnicate` `maskloom pretrain --set a.b=1`\n"
    assert [problem_of(words) for words in commands(text)] == [
        "no option --max-words",
        "no command 'frobnicate'",
        "no key a.b",
    ]


def test_stored_figures_name_no_folder_of_the_machine_that_measured() -> None:
    pages = [page for place in ("benchmarks", "results") for page in (REPOSITORY / place).iterdir() if page.is_file()]
    named = re.compile(r"(?<![\w.~<])/(?:tmp|work|home|root|opt|mnt|Users)/[^\s\"']*")
    texts = {page.name: page.read_text(encoding="utf-8") for page in pages}
    assert {name: found[0] for name, text in texts.items() if (found := named.search(text))} == {}


def test_the_score_of_the_translation_recipe_is_the_measured_one() -> None:
    runs = json.loads((REPOSITORY / "results" / "translation.json").read_text(encoding="utf-8"))["runs"]
    (run,) = (run for run in runs if run["name"] == "the recipe" and run["seed"] == 0)
    bleu, minutes = run["scores"]["test_2016_flickr"]["bleu"], run["cpu_seconds"] / 60
    told = " ".join((REPOSITORY / "docs" / "TASKS.md").read_text(encoding="utf-8").split())
    assert f"the recipe reaches {bleu:.1f} BLEU on test2016 in {minutes:.0f} minutes" in told


def test_layers_of_a_published_model_compare_as_measured() -> None:
    rows = json.loads((REPOSITORY / "results" / "feature_based.json").read_text(encoding="utf-8"))["rows"]
    last, before = (rows[name]["scores"] for name in ("last", "second_to_last"))
    told = " ".join((REPOSITORY / "docs" / "paper.md").read_text(encoding="utf-8").split())
    first, second = (100 * (before[seed] - last[seed]) for seed in ("0", "1"))
    assert f"better than the last, by {first:.1f} and {second:.1f} F1 with two seeds" in told
    assert rows["last"]["mean"] < rows["embeddings"]["mean"]


def test_the_loop_of_word_vectors_is_as_fast_as_measured() -> None:
    rates = json.loads((REPOSITORY / "benchmarks" / "words_loop.json").read_text(encoding="utf-8"))["rates"]
    beside = {
        name: statistics.median(ours / theirs for ours, theirs in zip(rates["numba"], rates[name], strict=True))
        for name in ("torch", "NumPy")
    }
    told = " ".join((REPOSITORY / "docs" / "ARCHITECTURE.md").read_text(encoding="utf-8").split())
    assert f"{beside['torch']:.1f} times as many updates per second as batched torch code" in told
    assert f"{beside['NumPy']:.1f} times as many as batched NumPy" in told


def test_losses_and_workers_of_word_vectors_cost_what_was_measured() -> None:
    found = json.loads((REPOSITORY / "benchmarks" / "words_loop_intel.json").read_text(encoding="utf-8"))
    text = " ".join((REPOSITORY / "docs" / "WORDS.md").read_text(encoding="utf-8").split())

    def us(loss: str, size: str) -> float:
        return statistics.median(1e6 / rate for rate in found["losses"][f"{loss}, {size}"])

    small, large = (us("softmax", size) for size in ("1,000", "20,000"))
    assert (
        f"a pair takes {small:.0f} microseconds with the full softmax over 1,000 words and {large:,.0f} over 20,000;"
        in text
    )
    one, other = ([us(loss, size) for size in ("1,000", "20,000")] for loss in ("negative", "hierarchical"))
    assert f"it takes {one[0]:.2f} and {one[1]:.2f}, and with the tree {other[0]:.2f} and {other[1]:.2f}" in text
    pairs = zip(found["workers"]["deterministic"], found["workers"]["shared"], strict=True)
    faster = statistics.median(ours / theirs for ours, theirs in pairs)
    assert f"two workers train {faster:.2f} times as fast as with shared matrices" in text


def test_senses_are_separated_as_well_as_measured() -> None:
    found = json.loads((REPOSITORY / "results" / "word_comparisons.json").read_text(encoding="utf-8"))["senses"][
        "scores"
    ]
    text = " ".join((REPOSITORY / "docs" / "WORDS.md").read_text(encoding="utf-8").split())
    told = {
        "layer 6": "MiniLM's last layer separates {:.0%} of its occurrences",
        "mean word vector of the other words": "The mean word vector of the rest of the sentence separates {:.0%}.",
        "ELMo, layer 2": "The top layer of a tiny ELMo separates {:.0%};",
    }
    for kind, sentence in told.items():
        assert sentence.format(statistics.fmean(found[kind]["without the rule's words, accuracy"])) in text
    assert set(found["ELMo, layer 0"]["whole sentence, accuracy"]) == {0.5}


def test_embeddings_from_word2vec_score_as_measured() -> None:
    scores = json.loads((REPOSITORY / "results" / "word_initialization.json").read_text(encoding="utf-8"))["scores"]
    text = " ".join((REPOSITORY / "docs" / "WORDS.md").read_text(encoding="utf-8").split())
    starts = ("random", "Wikipedia", "IMDB")
    none, far, near = (f"{statistics.fmean(scores[f'lstm-1000-{start}']['accuracy']):.1%}" for start in starts)
    told = f"labels {none} correctly from random embeddings, {far} from vectors of Wikipedia and {near} from vectors of"
    assert told in text


def test_what_a_bert_brings_to_title_guided_attention_is_the_measured_gain() -> None:
    found = json.loads((REPOSITORY / "results" / "title_attention.json").read_text(encoding="utf-8"))["scores"]
    names = ("MiniLM in place of the BiGRU", "title-guided attention")
    ours, theirs = (100 * statistics.fmean(run["f1_micro"] for run in found[name]) for name in names)
    told = " ".join((REPOSITORY / "docs" / "TASKS.md").read_text(encoding="utf-8").split())
    assert f"MiniLM as the encoder scores {ours - theirs:.1f} points higher in micro F1" in told


def test_bf16_on_a_processor_gains_what_was_measured() -> None:
    text = (REPOSITORY / "docs" / "HARDWARE.md").read_text(encoding="utf-8")
    for page in ("half_precision_zen4", "half_precision"):
        results = json.loads((REPOSITORY / "benchmarks" / f"{page}.json").read_text(encoding="utf-8"))["results"]
        said = []
        for mix in ("128", "mixed"):
            rates = [row["rates"] for row in results if row["mix"] == mix]
            pairs = (zip(row["maskloom, bf16"], row["maskloom, fp32"], strict=True) for row in rates)
            gains = [statistics.median(ours / theirs for ours, theirs in pair) for pair in pairs]
            said.append(f"{min(gains):.2f} to {max(gains):.2f}")
        assert f"| {' | '.join(said)} | [measured](../benchmarks/{page}.md) |" in text


def test_onednn_costs_an_intel_processor_what_was_measured() -> None:
    page, text = (
        (REPOSITORY / "benchmarks" / name).read_text(encoding="utf-8")
        for name in ("pretraining_step_intel.md", "README.md")
    )
    rows = re.findall(r"^\| (\w+) \| \w+ \| maskloom, oneDNN \| \*\*([\d.]+)x", page, re.MULTILINE)
    for sizes, said in (
        ({"tiny", "mini", "small"}, "{} to {}% longer at tiny, mini and small"),
        ({"base"}, "{} to {}% at base"),
    ):
        longer = [round(100 * float(ratio)) - 100 for size, ratio in rows if size in sizes]
        assert said.format(min(longer), max(longer)) in " ".join(text.split())


def test_masking_without_unchanged_or_random_tokens_costs_what_was_measured() -> None:
    scores = json.loads((REPOSITORY / "results" / "table8.json").read_text(encoding="utf-8"))["scores"]
    mix, masks = (statistics.fmean(scores[rates]["conll2003"]) for rates in ("80/10/10", "100/0/0"))
    told = " ".join((REPOSITORY / "docs" / "paper.md").read_text(encoding="utf-8").split())
    assert f"100/0/0 is {mix - masks:.1f} F1 behind" in told


def test_ranks_send_as_much_as_the_table_of_communication_says() -> None:
    table = (REPOSITORY / "benchmarks" / "communication.md").read_text(encoding="utf-8").splitlines()
    rows = [line.split("|") for line in table if re.match(r"\| \w+ \| [\d.]+ M \|", line)]
    told = " ".join((REPOSITORY / "docs" / "CLUSTER.md").read_text(encoding="utf-8").split())
    for column, said in ((-3, "{:,.0f} to {:,.0f} tokens per step"), (-2, "{:,.0f} to {:,.0f} on 10 Gbit/s")):
        tokens = [int(row[column].replace(",", "")) for row in rows]
        assert said.format(*(float(f"{bound:.2g}") for bound in (min(tokens), max(tokens)))) in told
