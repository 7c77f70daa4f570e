"""Who is to blame when several processes do not get on."""

import threading

from maskloom.training.rank_watch import RankView, RankWatch, culprit

LIMIT = 45.0


def _views(*calls: int, now: float = 100.0) -> dict[int, RankView]:
    return {
        rank: RankView(calls=number, heard_at=now, active_at=now, place=f"line-{rank}")
        for rank, number in enumerate(calls)
    }


def test_ranks_that_wait_for_each_other_a_while_are_well() -> None:
    assert culprit(_views(7, 6, 7), 100.0 + LIMIT / 3 - 1, LIMIT) is None


def test_a_rank_without_signs_of_life_is_lost_also_while_it_evaluates() -> None:
    views = _views(7, 7)
    views[1].is_patient = True
    views[1].heard_at = 80.0
    assert "rank 1 was lost" in str(culprit(views, 100.0, LIMIT))


def test_a_rank_behind_the_others_that_does_nothing_hangs() -> None:
    views = _views(7, 6, 7)
    for view in views.values():
        view.active_at = 50.0
    for view in views.values():
        view.heard_at = 100.0
    assert culprit(views, 100.0, LIMIT) == "rank 1 hangs: nothing done for 50 s at line-1, the others wait for it"


def test_one_that_evaluates_for_all_may_take_longer() -> None:
    views = _views(6, 7)
    views[0].is_patient = True
    for view in views.values():
        view.active_at = 0.0
    assert culprit(views, 100.0, LIMIT) is None
    for view in views.values():
        view.heard_at = 1000.0
    assert "rank 0 hangs" in str(culprit(views, 1000.0, LIMIT))


def test_all_at_the_same_call_are_named_with_their_places_after_long() -> None:
    views = _views(7, 7)
    for view in views.values():
        view.heard_at = 1000.0
        view.active_at = 0.0
    assert culprit(views, 1000.0, LIMIT) == "no rank has got on for 1000 s: rank 0 at line-0; rank 1 at line-1"


def test_a_rank_that_left_in_order_is_not_missed() -> None:
    views = _views(7, 7)
    views[1].has_left = True
    views[1].heard_at = 0.0
    assert culprit(views, 100.0, LIMIT) is None


class _Store(dict):
    """A store in this process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def test_a_rank_learns_from_the_store_why_another_ended() -> None:
    store = _Store()
    first, second = (RankWatch(store, rank, 2, LIMIT) for rank in range(2))
    first.start()
    second.start()
    second.leave("rank 1 failed: DataError: no text")
    second.stop()
    assert first.explanation() == "rank 1 failed: DataError: no text"
    first.stop()


def test_a_rank_that_falls_silent_ends_the_others(monkeypatch) -> None:
    monkeypatch.setattr("maskloom.training.rank_watch._SECONDS_BETWEEN_SIGNS", 0.01)
    store, problems, ended = _Store(), [], threading.Event()

    def end(problem: str) -> None:
        problems.append(problem)
        ended.set()

    first = RankWatch(store, 0, 2, 0.6, end=end)
    second = RankWatch(store, 1, 2, 0.6, end=lambda problem: None)
    first.start()
    second.start()
    second.stop()
    assert ended.wait(60)
    assert "rank 1 was lost" in problems[0]
    first.stop()
