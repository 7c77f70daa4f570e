from maskloom.runs.display import lines_of


def test_lines_are_aligned_and_nested() -> None:
    result = {"loss": 1.23456, "num_tokens": 1234567, "nested": {"a": True}, "list": [1, 2], "long": list(range(20))}
    assert lines_of(result) == [
        "loss        1.235",
        "num tokens  1,234,567",
        "nested:",
        "  a  True",
        "list        1, 2",
        "long        20 entries",
    ]
