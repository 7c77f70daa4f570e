"""Which rank is to blame when several processes make no progress."""

import json
import threading
import time
from types import SimpleNamespace

from maskloom.training.ranks.rank_watch import RankView, RankWatch, Work, culprit

LIMIT = 45.0


def _views(*calls: int, now: float = 100.0) -> dict[int, RankView]:
    return {
        rank: RankView(sign=1, calls=number, heard_at=now, active_at=now, place=f"line-{rank}")
        for rank, number in enumerate(calls)
    }


def test_ranks_that_wait_for_each_other_a_while_are_well() -> None:
    assert culprit(_views(7, 6, 7), 100.0 + LIMIT / 3 - 1, LIMIT) is None


def test_a_rank_without_signs_of_life_is_lost_whatever_it_is_at() -> None:
    views = _views(7, 7)
    views[1].heard_at = 80.0
    assert "rank 1 was lost" in str(culprit(views, 100.0, LIMIT))


def test_a_heartbeat_that_comes_a_moment_after_the_others_looked_is_not_missed() -> None:
    """Both happen once a second, and drift against each other."""
    assert culprit(_views(7, 7), 102.1, limit=3.0) is None
    assert "rank 0 was lost: no heartbeat for 3 s" in str(culprit(_views(7, 7), 103.1, limit=3.0))


def test_a_rank_that_ended_before_its_first_sign_of_life_is_lost() -> None:
    views = _views(0, 0)
    views[1].sign = -1
    assert culprit(views, 100.0 + LIMIT / 3 - 1, LIMIT) is None
    views[0].heard_at += LIMIT
    assert "rank 1 was lost" in str(culprit(views, 100.0 + LIMIT / 3 + 1, LIMIT))


def test_a_rank_behind_the_others_that_does_nothing_hangs() -> None:
    views = _views(7, 6, 7, now=1000.0)
    for view in views.values():
        view.active_at = 1000.0 - LIMIT + 1
    assert culprit(views, 1000.0, LIMIT) is None
    views[1].active_at -= 2
    expected = f"rank 1 hangs: no progress for {LIMIT + 1:.0f} s at line-1; the others wait for it"
    assert culprit(views, 1000.0, LIMIT) == expected


def _sign(number: int, processor: float, work: Work, waits_for_disk: bool = False) -> dict:
    return {
        "sign": number, "calls": 3, "activity": 8, "processor": processor, "place": "line", "work": work,
        "waits_for_disk": waits_for_disk,
    }  # fmt: skip


def test_a_save_that_waits_for_a_disk_is_at_work_for_long(monkeypatch) -> None:
    view, watch = RankView(activity=8, heard_at=1.0), RankWatch(_Store(), 0, 2, LIMIT)
    view.update(_sign(1, 0.0, "save"), 2.0)
    assert view.active_at == 0.0
    view.update(_sign(2, 0.0, "save", waits_for_disk=True), 3.0)
    assert view.active_at == 3.0
    monkeypatch.setattr("maskloom.training.ranks.rank_watch.DISK_CALLS", calls := {})
    for work, waited, expected in (("save", 1, True), ("save", 10 * LIMIT + 1, False), ("own", 1, False)):
        calls[1] = time.monotonic() - waited
        with watch.at(work):
            assert json.loads(watch._sign(1))["waits_for_disk"] is expected
    calls.clear()
    with watch.at("save"):
        assert json.loads(watch._sign(1))["waits_for_disk"] is False


def test_a_rank_that_computes_on_its_own_is_at_work_and_one_that_computes_in_a_step_is_not() -> None:
    for work, is_active in (("own", True), ("step", False)):
        view = RankView(activity=8, heard_at=1.0)
        view.update(_sign(1, 0.5, work), 2.0)
        assert (view.active_at == 2.0) is is_active
        view.update(_sign(2, 0.51, work), 3.0)
        assert view.active_at < 3.0


def test_all_at_the_same_call_are_named_with_their_places_after_long() -> None:
    views = _views(7, 7)
    for view in views.values():
        view.heard_at = 1000.0
        view.active_at = 0.0
    assert culprit(views, 1000.0, LIMIT) == "no rank has made progress for 1000 s: rank 0 at line-0; rank 1 at line-1"


def test_a_rank_that_left_in_order_is_not_missed() -> None:
    views = _views(7, 7)
    views[1].has_left = True
    views[1].heard_at = 0.0
    assert culprit(views, 100.0, LIMIT) is None


class _Store(dict):
    """An in-process store."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key]


def test_a_rank_learns_from_the_store_why_another_ended(monkeypatch) -> None:
    monkeypatch.setattr("maskloom.training.ranks.rank_watch._SECONDS_BETWEEN_SIGNS", 0.01)
    store = _Store()
    first, second = (RankWatch(store, rank, 2, LIMIT) for rank in range(2))
    first.start()
    second.start()
    second.leave("rank 1 failed: DataError: no text")
    second.stop()
    assert first.explanation() == "rank 1 failed: DataError: no text"
    first.stop()


def test_a_rank_that_falls_silent_ends_the_others(monkeypatch) -> None:
    monkeypatch.setattr("maskloom.training.ranks.rank_watch._SECONDS_BETWEEN_SIGNS", 0.01)
    store, problems, ended = _Store(), [], threading.Event()

    def end(watch: RankWatch, problem: str) -> None:
        if watch.rank == 0:
            problems.append(problem)
            ended.set()

    monkeypatch.setattr(RankWatch, "_end", end)
    first, second = (RankWatch(store, rank, 2, 0.6) for rank in range(2))
    first.start()
    second.start()
    second.stop()
    assert ended.wait(60)
    assert "rank 1 was lost" in problems[0]
    first.stop()


def test_a_loss_is_told_though_the_process_stood_still_meanwhile(monkeypatch) -> None:
    first = RankWatch(_Store(), 0, 2, LIMIT)
    clock = [100.0]
    first._views = {rank: RankView(sign=3, heard_at=clock[0]) for rank in range(2)}
    slow = SimpleNamespace(monotonic=lambda: clock[0], sleep=lambda seconds: clock.append(clock.pop() + 30.0))
    monkeypatch.setattr("maskloom.training.ranks.rank_watch.time", slow)
    assert first.loss(8.0) == "rank 1 was lost: its process was killed or cut off"
