"""The interactive page in Chromium: what is drawn, and what pointing at it does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from tests.problems import ROLL, SPIRAL
from torchgw import GWOptions, GWResult, History, gw_align
from torchgw.datasets import make_spiral, make_swiss_roll

pytestmark = pytest.mark.browser

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SOFTWARE_GL = ["--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
SOLID = make_swiss_roll(110, random_state=1)[0]
PLAIN = GWOptions(coarse=None)


def launched(flags: list[str]) -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    path = shutil.which("chromium") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("needs Chromium")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=FLAGS + flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    yield from launched(SOFTWARE_GL)


@pytest.fixture(scope="module")
def solved(result: GWResult) -> dict[str, GWResult]:
    return {
        "flat": result,
        "solid": gw_align(SPIRAL, SOLID, distances="landmark", options=PLAIN, random_state=0),
        "matrix": gw_align(cdist(SPIRAL, SPIRAL), cdist(ROLL, ROLL), options=PLAIN, random_state=0),
    }


@dataclass
class Opened:
    """A page in a window, and what it complained of or asked for."""

    window: Any
    troubles: list[str] = field(default_factory=list)

    def state(self, name: str) -> Any:
        return self.window.evaluate(f"torchgw.{name}")

    def point_at(self, at: int, index: int) -> None:
        self.window.mouse.move(*self.window.evaluate(f"torchgw.place({at}, {index})"))

    def lights(self, at: int) -> np.ndarray:
        """Centres of the lights of a side, in the window."""
        code = """svg => [...svg.querySelectorAll("circle")].map(c => {
            const r = c.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })"""
        return np.array(self.window.eval_on_selector(f"#cloud-{at} > svg", code))

    def picture(self, at: int) -> np.ndarray:
        """What is drawn of a side, (height, width, 3) in [0, 1]."""
        from matplotlib.image import imread

        shot = self.window.locator(f"#cloud-{at}").screenshot()
        return imread(BytesIO(shot), format="png")[..., :3]  # type: ignore[no-any-return]


def opened(browser: Any, path: Path, width: int = 1280) -> Opened:
    """The page at ``path``, ready."""
    page = Opened(browser.new_page(viewport={"width": width, "height": 900}))
    window, told = page.window, page.troubles
    # Drivers of software GL tell of slow reads on the console, as warnings.
    window.on("console", lambda message: told.append(message.text) if message.type == "error" else None)
    window.on("pageerror", lambda error: told.append(str(error)))
    window.on("dialog", lambda dialog: told.append(dialog.message))
    window.on("request", lambda asked: None if asked.url.startswith(("file:", "data:")) else told.append(asked.url))
    window.goto(path.as_uri())
    window.wait_for_function("window.torchgw && torchgw.ready", timeout=60_000)
    return page


@pytest.fixture(scope="module", params=["flat", "solid", "matrix"])
def shown(
    request: pytest.FixtureRequest, chromium: Any, solved: dict[str, GWResult], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Opened, GWResult]]:
    path = tmp_path_factory.mktemp("page") / "out.html"
    solved[request.param].report(path)
    page = opened(chromium, path)
    yield page, solved[request.param]
    page.window.close()


@pytest.fixture
def case(shown: tuple[Opened, GWResult]) -> Iterator[tuple[Opened, GWResult]]:
    """A page with nothing chosen; it complains of nothing."""
    page, _ = shown
    page.window.mouse.move(2, 2)
    page.window.keyboard.press("Escape")
    yield shown
    assert not page.troubles


def coloured(picture: np.ndarray) -> np.ndarray:
    """Where a picture is neither white nor grey."""
    return picture.max(-1) - picture.min(-1) > 0.15


def test_both_clouds_are_drawn_and_points_are_where_they_are_looked_for(case: tuple[Opened, GWResult]) -> None:
    page, result = case
    for at, size in enumerate(result.shape):
        found = coloured(page.picture(at))
        assert found.sum() > 15 * size
        box = page.window.locator(f"#cloud-{at}").bounding_box()
        places = np.array([page.window.evaluate(f"torchgw.place({at}, {i})") for i in range(size)])
        x, y = (places - [box["x"], box["y"]]).round().astype(int).T
        assert found[y, x].mean() > 0.97


@pytest.mark.parametrize("at", [0, 1])
def test_pointing_at_a_point_lights_up_its_best_matches(case: tuple[Opened, GWResult], at: int) -> None:
    page, result = case
    plan = result.plan if at == 0 else result.plan.T
    page.point_at(at, 7)
    seen = page.state("highlighted")
    assert seen["side"] == ("source", "target")[at]
    row = plan[seen["index"]] / plan[seen["index"]].sum()
    place = page.window.evaluate(f"torchgw.place({at}, {seen['index']})")
    np.testing.assert_allclose(place, page.window.evaluate(f"torchgw.place({at}, 7)"), atol=14)
    np.testing.assert_allclose([match["share"] for match in seen["matches"]], -np.sort(-row)[:5], rtol=1e-5)
    np.testing.assert_allclose(row[[match["index"] for match in seen["matches"]]], -np.sort(-row)[:5], rtol=1e-5)
    expected = [page.window.evaluate(f"torchgw.place({1 - at}, {match['index']})") for match in seen["matches"]]
    np.testing.assert_allclose(np.sort(page.lights(1 - at), 0), np.sort(expected, 0), atol=0.5)
    table = page.window.locator("#matches-table tbody tr td:first-child button").all_text_contents()
    assert table == [str(match["index"]) for match in seen["matches"]]
    assert page.state("milliseconds") < 1000


def test_a_click_pins_until_escape(case: tuple[Opened, GWResult]) -> None:
    page, _ = case
    page.point_at(0, 3)
    page.window.mouse.down()
    page.window.mouse.up()
    held = page.state("highlighted")
    assert page.state("pinned")
    page.point_at(0, 60)
    assert page.state("highlighted") == held
    page.window.keyboard.press("Escape")
    assert page.state("highlighted") is None
    assert len(page.lights(0)) == len(page.lights(1)) == 0
    page.point_at(0, 61)
    assert page.state("highlighted")["index"] != held["index"]


def test_an_index_can_be_looked_up_and_matches_be_followed(case: tuple[Opened, GWResult]) -> None:
    page, result = case
    page.window.fill("#lookup-index", "42")
    assert page.state("highlighted")["index"] == 42
    assert page.state("pinned")
    page.window.locator("#matches-table button").first.click()
    assert page.state("highlighted")["side"] == "target"
    assert page.state("highlighted")["index"] == result.argmax()[42]
    page.window.fill("#lookup-index", "90")
    assert "from 0 to 89" in page.window.text_content("#message")


def test_lights_follow_when_the_view_changes(case: tuple[Opened, GWResult]) -> None:
    page, _ = case
    page.window.fill("#lookup-index", "42")
    before = page.lights(1)
    box = page.window.locator("#cloud-1").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.window.mouse.move(x, y)
    page.window.mouse.down()
    page.window.mouse.move(x + 60, y + 20, steps=4)
    page.window.mouse.up()
    page.window.wait_for_timeout(500)
    seen = page.state("highlighted")["matches"]
    expected = [page.window.evaluate(f"torchgw.place(1, {match['index']})") for match in seen]
    np.testing.assert_allclose(np.sort(page.lights(1), 0), np.sort(expected, 0), atol=0.5)
    assert np.abs(page.lights(1) - before).max() > 5


def test_the_source_can_be_coloured_by_confidence(case: tuple[Opened, GWResult]) -> None:
    page, result = case
    first = page.picture(0)
    page.window.select_option("#colouring", label="confidence: entropy")
    page.window.wait_for_timeout(700)
    assert np.abs(page.picture(0) - first).max() > 0.3
    assert coloured(page.picture(1)).sum() < 50  # grey
    low = float(page.window.text_content("#legend span"))
    assert low == pytest.approx(float(result.confidence().entropy.min()), rel=1e-2)


def test_the_page_opens_with_a_verdict_and_what_is_turned_over_has_turned_colours(
    chromium: Any, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    cloud = rng.random((60, 2)) * [2, 1]
    solved = gw_align(cloud, cloud * [1, -1], distances="euclidean", epsilon=1e-4, random_state=0)
    solved.report(tmp_path / "out.html")
    page = opened(chromium, tmp_path / "out.html")
    assert page.window.text_content("#verdict").startswith("This matching can be trusted")
    shades = []
    for at in (0, 1):
        box, picture = page.window.locator(f"#cloud-{at}").bounding_box(), page.picture(at)
        places = np.array([page.window.evaluate(f"torchgw.place({at}, {i})") for i in range(60)])
        x, y = (places - [box["x"], box["y"]]).round().astype(int).T
        shades.append(picture[y, x])
    np.testing.assert_allclose(shades[1], shades[0], atol=0.1)  # each point has its own, wherever it is
    top, bottom = shades[0][cloud[:, 1] > 0.7], shades[0][cloud[:, 1] < 0.3]
    assert top.mean() > bottom.mean() + 0.2
    left, right = shades[0][cloud[:, 0] < 0.4], shades[0][cloud[:, 0] > 1.6]
    assert (left[:, 2] - left[:, 0]).min() > 0.1 > -0.1 > (right[:, 2] - right[:, 0]).max()
    page.window.close()


def test_labels_are_shown_as_text(chromium: Any, result: GWResult, tmp_path: Path) -> None:
    names = np.array(["</script><script>alert(1)</script>", "<img src=x onerror=alert(2)>", "ünï"])
    result.report(tmp_path / "out.html", labels=names[np.arange(90) % 3])
    page = opened(chromium, tmp_path / "out.html", width=800)
    assert page.window.locator("#legend > span").all_text_contents() == sorted(names)
    page.point_at(0, 5)
    assert page.window.locator("#matches-table tbody tr").count() == 5
    assert page.window.evaluate("document.documentElement.scrollWidth") <= 800
    assert page.window.evaluate("document.querySelectorAll('main img').length") == 0
    page.window.close()
    assert not page.troubles


def test_five_thousand_points_answer_at_once(chromium: Any, tmp_path: Path) -> None:
    X, Y = make_spiral(5000)[0], make_swiss_roll(5000, random_state=1)[0]
    options = GWOptions(strategy="streaming")
    gw_align(X, Y, distances="landmark", options=options, random_state=0).report(tmp_path / "out.html")
    page = opened(chromium, tmp_path / "out.html")
    times = []
    for i in range(20):
        page.point_at(i % 2, 100 * i)
        times.append(page.state("milliseconds"))
    assert np.median(times) < 100
    page.window.close()
    assert not page.troubles


def test_without_webgl_flat_pictures_are_drawn(solved: dict[str, GWResult], tmp_path: Path, chromium: Any) -> None:
    solved["solid"].report(tmp_path / "out.html")
    page = Opened(chromium.new_page())
    page.window.add_init_script("HTMLCanvasElement.prototype.getContext = () => null")
    page.window.goto((tmp_path / "out.html").as_uri())
    page.window.wait_for_function("window.torchgw && torchgw.ready")
    assert not page.state("webgl")
    assert "for lack of WebGL" in page.window.text_content("#caption-1")
    assert page.window.locator("#cloud-1 .scatterlayer path.point").count() == 110
    page.point_at(1, 9)
    assert page.state("highlighted")["side"] == "target"
    page.window.close()


def test_names_are_shown_looked_up_and_followed_to_where_other_matchings_send_a_point(
    chromium: Any, result: GWResult, tmp_path: Path
) -> None:
    names = np.array([f"<b>{i}" for i in range(110)], dtype=object)
    named = replace(result, names_x=names[:90], names_y=names[::-1])
    named.report(tmp_path / "out.html")
    page = opened(chromium, tmp_path / "out.html")
    page.point_at(0, 7)
    seen = page.state("highlighted")
    assert page.window.text_content("#matches-title").startswith(f"source {names[seen['index']]}")
    listed = page.window.locator("#matches-table tbody tr td:first-child button").all_text_contents()
    assert listed == [names[::-1][match["index"]] for match in seen["matches"]]
    assert not page.window.locator("#others-table").is_visible()
    page.window.fill("#lookup-index", "<b>42")
    assert page.state("highlighted")["index"] == 42
    others = [int(basin.matching[42]) for basin in result.basins[1:6]]
    assert len(others) > 0
    assert page.state("highlighted")["others"] == others
    assert page.window.locator("#others-table button").all_text_contents() == [names[::-1][j] for j in others]
    page.window.fill("#lookup-index", "<b>")
    assert "has the name <b>" in page.window.text_content("#message")
    page.window.locator("#pairs-details summary").click()
    rows = page.window.locator("#pairs tbody tr")
    assert rows.count() == 90
    assert rows.first.locator("td").all_text_contents()[:2] == [names[0], names[::-1][result.argmax()[0]]]
    page.window.close()
    assert not page.troubles


def test_a_panel_without_content_is_left_out(chromium: Any, result: GWResult, tmp_path: Path) -> None:
    linear = gw_align(None, None, cost=np.random.default_rng(0).random((20, 30)), alpha=0, random_state=0)
    bare = replace(result, basins=(), history=History([], [], [], [], []), ladder=())
    for solved, empty in ((linear, {"matchings"}), (bare, {"matchings", "history"})):
        solved.report(tmp_path / "out.html", SPIRAL[: solved.shape[0]], ROLL[: solved.shape[1]])
        page = opened(chromium, tmp_path / "out.html")
        seen = {name for name in ("matchings", "history") if page.window.locator(f"#{name}-title").is_visible()}
        assert seen == {"matchings", "history"} - empty
        for panel in page.window.locator("[data-panel]").all():
            assert panel.is_visible() == (panel.locator("[data-filled]").count() > 0)
        page.window.close()
