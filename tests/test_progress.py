"""The callbacks for people."""

from __future__ import annotations

import copy
import io
import logging
import pickle
import sys

import pytest

from tests.problems import ROLL, SPIRAL
from torchgw import Progress, ProgressBar, ProgressLog, gw_align
from torchgw.progress import bar_on_terminal


def told(iteration: int, elapsed: float = 0.0) -> Progress:
    return Progress(iteration=iteration, max_iter=100, cost=0.25, marginal_error=1e-3, epsilon=1e-3, elapsed=elapsed)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_shows_how_far_a_solve_is() -> None:
    stream = Terminal()
    with ProgressBar("solve", file=stream, mininterval=0, ncols=120) as bar:
        bar(told(50))
        assert "solve:  50%" in stream.getvalue()
        assert "50/100" in stream.getvalue()
        assert "cost 0.25000, marginals 1e-03, epsilon 1.0e-03" in stream.getvalue()
        bar(told(10))  # the next basin begins anew
        assert bar.bar.n == 10
        bar(told(100))
    assert "100/100" in stream.getvalue().splitlines()[-1]


def test_a_bar_that_does_not_leave_is_wiped_away() -> None:
    stream = Terminal()
    with ProgressBar("solve", leave=False, file=stream, mininterval=0, ncols=120) as bar:
        bar(told(50))
    assert stream.getvalue().endswith("\r")
    assert stream.getvalue().rsplit("\r", 2)[1].strip() == ""


def test_a_solve_feeds_the_bar() -> None:
    stream = Terminal()
    with ProgressBar(file=stream, mininterval=0) as bar:
        result = gw_align(SPIRAL, ROLL, epsilon=1e-3, random_state=0, callback=bar)
    assert bar.bar.n == result.n_iter


def test_without_tqdm_the_bar_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    with pytest.raises(ImportError, match="pip install tqdm"):
        ProgressBar()
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bar_on_terminal("solve") as bar:
        assert bar is None


def test_a_command_shows_a_bar_on_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with bar_on_terminal("solve") as bar:
        assert bar is None
    monkeypatch.setattr(sys, "stderr", Terminal())
    with bar_on_terminal("solve") as bar:
        assert isinstance(bar, ProgressBar)


def test_the_log_has_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    log = ProgressLog(every=10)
    with caplog.at_level(logging.INFO, "torchgw"):
        for iteration, elapsed in ((1, 0.5), (2, 5.0), (3, 10.6), (4, 12.0), (5, 0.1)):
            log(told(iteration, elapsed))
    assert [record.args[0] for record in caplog.records] == [1, 3, 5]  # time begins anew with a solve
    assert "iteration 3 of at most 100: cost 0.25, marginal error 1.0e-03" in caplog.messages[1]
    with pytest.raises(ValueError, match="every must be"):
        ProgressLog(every=-1)


def test_a_copy_is_the_bar_itself_and_a_restored_one_is_silent(capsys: pytest.CaptureFixture[str]) -> None:
    stream = Terminal()
    with ProgressBar("solve", file=stream, mininterval=0, ncols=120) as bar:
        assert copy.deepcopy(bar) is bar
        restored = pickle.loads(pickle.dumps(bar))
        before = stream.getvalue()
        restored(told(50))
        restored.close()
        assert stream.getvalue() == before
    assert capsys.readouterr() == ("", "")
