import numpy as np
import pytest

from maskloom.data.corpus.opening import split_documents


@pytest.mark.parametrize("num_documents", [2, 3, 10, 997])
@pytest.mark.parametrize("share", [1e-9, 0.02, 0.5, 0.999])
def test_both_sides_get_documents(memory_corpus, num_documents: int, share: float) -> None:
    corpus = memory_corpus([[[5]]] * num_documents)
    train, held_out = split_documents(corpus, share, seed=1)
    assert sorted([*train.tolist(), *held_out.tolist()]) == list(range(num_documents))
    assert len(train) >= 1
    assert len(held_out) >= 1
    assert abs(len(held_out) - share * num_documents) <= 1
    assert (np.diff(train) > 0).all()
    assert (np.diff(held_out) > 0).all()


@pytest.mark.parametrize(("num_documents", "share"), [(1, 0.5), (9, 0.0)])
def test_nothing_is_held_out(memory_corpus, num_documents: int, share: float) -> None:
    train, held_out = split_documents(memory_corpus([[[5]]] * num_documents), share, seed=1)
    assert train.tolist() == list(range(num_documents))
    assert held_out.tolist() == []
    assert held_out.dtype == np.int64


def test_the_split_depends_on_the_seed_alone(memory_corpus) -> None:
    a, b = memory_corpus([[[5]]] * 50), memory_corpus([[[9, 8], [7]]] * 50)
    assert split_documents(a, 0.2, seed=3)[1].tolist() == split_documents(b, 0.2, seed=3)[1].tolist()
    assert split_documents(a, 0.2, seed=3)[1].tolist() != split_documents(a, 0.2, seed=4)[1].tolist()
