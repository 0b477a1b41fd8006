"""Things that failed are left alone for a while, and never for good."""

from __future__ import annotations

from strata_storage.tiering.set_aside import SetAside, SetAsideOptions
from strata_storage.tiering.upload_failures import UploadFailures
from strata_testing import ManualClock

OPTIONS = SetAsideOptions(pause_ms=1_000, pause_max_ms=4_000, most=3)


def test_pauses_double_up_to_a_limit() -> None:
    """A thing is tried again after each pause; one that works begins anew."""
    clock = ManualClock()
    aside: SetAside[str] = SetAside(OPTIONS, clock)
    for pause_s in (1, 2, 4, 4):
        aside.add("a", "gone")
        clock.advance(pause_s - 0.1)
        assert aside.holds("a")
        clock.advance(0.1)
        assert not aside.holds("a")
        assert "a" in aside
    assert aside.remove("a")
    assert ("a" in aside, aside.reason, len(aside)) == (False, "", 0)
    aside.add("a", "gone")
    clock.advance(1)
    assert not aside.holds("a")


def test_a_failure_is_news_once() -> None:
    """The log gets a line for each change, not for each failure."""
    aside: SetAside[str] = SetAside(OPTIONS, ManualClock())
    news = [aside.add("a", reason) for reason in ("gone", "gone", "refused", "refused")]
    assert news == [True, False, True, False]
    assert aside.reason == "refused"
    aside.remove("a")
    assert aside.add("a", "refused")


def test_what_does_not_fail_again_is_forgotten() -> None:
    """An object that is gone since is not shown as a failure any more."""
    clock = ManualClock()
    aside: SetAside[str] = SetAside(OPTIONS, clock)
    aside.add("a", "gone")
    clock.advance(4.9)
    assert (aside.reason, len(aside)) == ("gone", 1)
    clock.advance(0.2)
    assert ("a" in aside, aside.reason, len(aside)) == (False, "", 0)
    assert aside.add("a", "gone")
    clock.advance(1)
    assert not aside.holds("a"), "its pause begins with the first one"


def test_there_are_never_more_than_the_limit() -> None:
    """The ones that failed longest ago are tried again at once if they are too many."""
    aside: SetAside[int] = SetAside(OPTIONS, ManualClock())
    for each in range(5):
        aside.add(each, "gone")
    assert [each for each in range(5) if aside.holds(each)] == [2, 3, 4]
    aside.retry_all()
    assert not any(map(aside.holds, range(5)))
    assert len(aside) == 3


def test_spaces_that_fail_give_way() -> None:
    """After a failure every space that fails waits for one object of another one."""
    clock = ManualClock()
    failures = UploadFailures(OPTIONS, clock)
    for space in ("a", "b"):
        failures.failed(OSError(f"{space} is gone"), space)
    clock.advance(1)
    assert (failures.is_space_aside("a"), failures.is_space_aside("c")) == (True, False)
    failures.uploaded("c")
    assert not failures.is_space_aside("a")
    failures.failed(OSError("a is gone"), "a")
    clock.advance(2)
    assert failures.is_space_aside("b")
    failures.nothing_else_waits()
    assert not failures.is_space_aside("b")
    assert failures.reason == "a is gone"
