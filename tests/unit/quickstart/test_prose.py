import pytest

from maskloom.quickstart.documentation import is_prose, paragraphs, sentences_of

DOCSTRING = """Compute the weighted mean of the values along one axis.

    The weights are scaled first, so that they add up to
    one along that axis.  Zeros count.

    Parameters
    ----------
    values : array_like
        The values that are averaged by this function.
    axis : int, optional
        Axis along which the mean is computed by default.

    Returns
    -------
    mean : ndarray
        The mean of the values with one axis less.

    See Also
    --------
    average : This sentence belongs to another function altogether.

    Examples
    --------
    >>> mean([1, 2])
    This output of an example is not prose at all.

    .. code-block:: python

        This block is code and never a sentence of prose.

    .. note:: Notes
        A note is prose that a reader would want to keep.
    """


def test_a_docstring_gives_its_prose_and_nothing_else() -> None:
    assert sentences_of(DOCSTRING) == [
        "Compute the weighted mean of the values along one axis.",
        "The weights are scaled first, so that they add up to one along that axis.",
        "The values that are averaged by this function.",
        "Axis along which the mean is computed by default.",
        "The mean of the values with one axis less.",
        "A note is prose that a reader would want to keep.",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Return :class:`~collections.OrderedDict` whenever the input is sorted.", "OrderedDict"),
        ("See the ``encoding`` argument for what happens with bytes.", "encoding"),
        ("Read `the guide <https://example.org>`_ before using this function.", "the guide"),
        (":param name: The name of the file that is opened.", "The name of the file that is opened."),
    ],
)
def test_markup_is_unwrapped(text: str, expected: str) -> None:
    found = sentences_of(text)
    assert len(found) == 1
    assert expected in found[0]
    assert not set("`<>:") & set(found[0])


@pytest.mark.parametrize(
    ("sentence", "is_kept"),
    [
        ("This sentence has exactly six words.", True),
        ("Only five words are here.", False),
        ("this one starts with a small letter.", False),
        ("This one does not end with anything", False),
        ("Set x = 1 before calling the function again.", False),
        ("See https://example.org for all of the details.", False),
        ("Call os.path.join and np.ndarray.sum with camelCase names only.", False),
        ("word " * 61, False),
    ],
)
def test_what_counts_as_prose(sentence: str, is_kept: bool) -> None:
    assert is_prose(sentence) == is_kept


def test_a_list_gives_one_paragraph_an_item() -> None:
    text = "Either of these:\n\n- the first thing\n  that goes on\n- the second thing\n"
    assert paragraphs(text)[-2:] == ["the first thing that goes on", "the second thing"]
