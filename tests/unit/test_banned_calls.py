"""The check that bans calls which run code from files."""

import pytest

from tools.banned_calls import problems_of


@pytest.mark.parametrize(
    "code",
    [
        "import pickle\npickle.load(file)",
        "from pickle import loads as read\nread(data)",
        "import pickle as p\nclass Mine(p.Unpickler): pass",
        "import torch\ntorch.load(path, weights_only=True)",
        "from torch import load\nload(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "eval(text)",
        "exec(text)",
        "import yaml\nyaml.load(text)",
        "archive.extractall(folder)",
        "tarfile.open(path).extractall()",
        "subprocess.run(command, shell=True)",
        "import os\nos.system(command)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_calls_that_run_code_are_named(code):
    (problem,) = problems_of(code, "x.py")
    assert problem.startswith("x.py:")


@pytest.mark.parametrize(
    "code",
    [
        "model.eval()",
        "build(config).eval()",
        "np.load(path, allow_pickle=False)",
        "json.loads(text)",
        "self.exec(text)",
        "subprocess.run([program])",
        "import pickle\npickle.load(file)  # may run code: written by this process a moment ago",
    ],
)
def test_what_is_harmless_or_allowed_passes(code):
    assert problems_of(code, "x.py") == []
