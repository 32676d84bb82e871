"""The pages in a real browser: they draw, complain of nothing, and ask nobody for anything."""

from __future__ import annotations

import base64
import json
import re

import pytest

from browser import browser, complaints, drawn, open_page, requests
from locksfl._charts import Chart, Line
from locksfl.experiment.documents import read_document
from locksfl.experiment.page.blocks import (
    Code,
    Figure,
    Listing,
    Number,
    Section,
    Summary,
    Table,
    Text,
)
from locksfl.experiment.page.sheet import Sheet, render
from locksfl.experiment.publish import publish_folder
from locksfl.experiment.record import Statement, read
from small_runs import finished, new_path, quick

SERVER, PUBLIC = 9, 5  # figures
WIDTHS = "return [document.documentElement.scrollWidth, document.body.scrollWidth, innerWidth]"
PAPER = "return getComputedStyle(document.body).backgroundColor"
# where the entry of the first legend is, and whether the line of each entry is shown
KEY = """
const box = document.querySelector("#figure-1 .key").getBoundingClientRect();
return [box.left + 24, box.top + box.height / 2];
"""
SHOWN = """
return [...document.querySelectorAll("#figure-1 g[data-line]:not(.key)")]
  .map(one => getComputedStyle(one).display !== "none");
"""
PRESSED = 'return [...document.querySelectorAll("#figure-1 .key")].map(one => one.ariaPressed)'


@pytest.fixture(scope="module")
def driver():
    with browser() as one:
        yield one


@pytest.fixture(scope="module")
def bundle():
    target = new_path()
    publish_folder(finished(), target)
    return target


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_draw_and_ask_for_nothing(driver, bundle, width, dark):
    for path, figures in ((finished() / "report.html", SERVER), (bundle / "report.html", PUBLIC)):
        open_page(driver, path, width, dark)
        found = drawn(driver)
        assert len(found) == figures
        assert min(found) > 1000
        assert complaints(driver) == []
        assert requests(driver) == [path.resolve().as_uri()]
        whole, body, inner = driver.execute_script(WIDTHS)
        assert inner == width
        assert max(whole, body) <= width
        lightness = sum(json.loads(f"[{driver.execute_script(PAPER)[4:-1]}]")) / 3
        assert lightness < 60 if dark else lightness > 200


def test_a_page_that_asks_complains_or_is_too_wide_is_seen(driver, bundle, tmp_path):
    """The checks of this file can fail."""
    text = (bundle / "report.html").read_text("utf-8")
    policy = text[text.index("<meta http-equiv") : text.index("<title>")]
    asks = '<img src="http://127.0.0.1:9/planted.png"><div style="width:2000px">.</div></main>'
    faulty = tmp_path / "faulty.html"
    faulty.write_text(text.replace(policy, "").replace("</main>", asks), "utf-8")
    open_page(driver, faulty, 390)
    assert "http://127.0.0.1:9/planted.png" in requests(driver)
    assert complaints(driver)
    assert driver.execute_script(WIDTHS)[0] > 390
    # the same with the page's own policy: the browser refuses to ask
    faulty.write_text(text.replace("</main>", asks), "utf-8")
    open_page(driver, faulty)
    assert any("Content Security Policy" in line for line in complaints(driver))
    # without its figures
    unseen = ".drawing * { visibility: hidden }</style>"
    faulty.write_text(text.replace("</style>", unseen), "utf-8")
    open_page(driver, faulty)
    assert drawn(driver) == [0] * PUBLIC


def test_a_click_on_the_legend_hides_a_line(driver, bundle):
    from selenium.webdriver.common.action_chains import ActionChains

    open_page(driver, bundle / "report.html")
    driver.execute_script('document.getElementById("figure-1").scrollIntoView({block: "center"})')
    before = drawn(driver)[0]
    assert driver.execute_script(SHOWN) == [True] * 3
    x, y = driver.execute_script(KEY)
    chain = ActionChains(driver)
    chain.w3c_actions.pointer_action.move_to_location(int(x), int(y)).click()
    chain.perform()
    assert driver.execute_script(SHOWN) == [False, True, True]
    assert driver.execute_script(PRESSED) == ["false", "true", "true"]
    assert drawn(driver)[0] < before
    assert complaints(driver) == []


def test_a_key_on_the_legend_hides_a_line_and_shows_it_again(driver, bundle):
    from selenium.webdriver.common.action_chains import ActionChains

    open_page(driver, bundle / "report.html")
    driver.execute_script('document.querySelectorAll("#figure-1 .key")[1].focus()')
    for key, shown in (("\ue007", False), (" ", True)):  # Enter, then the space bar
        ActionChains(driver).send_keys(key).perform()
        assert driver.execute_script(SHOWN) == [True, shown, True]


def test_who_cannot_see_a_figure_is_told_what_it_shows(driver, bundle):
    open_page(driver, bundle / "report.html")
    nodes = driver.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    told = [
        tuple(node.get(part, {}).get("value", "") for part in ("role", "name", "description"))
        for node in nodes
        if not node.get("ignored")
    ]
    figures = [words for role, name, words in told if role == "group" and " by " in name]
    assert len(figures) == PUBLIC
    for arm in ("uniform", "locks"):
        assert re.search(rf"{arm} from 0\.\d+ at 1 to 0\.\d+ at \d", figures[0])
        assert ("button", arm, "") in told


def test_a_page_can_be_printed(driver, bundle):
    open_page(driver, bundle / "report.html", dark=True)
    answer = driver.execute_cdp_cmd("Page.printToPDF", {"printBackground": False})
    printed = base64.b64decode(answer["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000


NAMES = (
    "<script>window.hit = 1</script>",
    "</script><script>window.hit = 2</script>",
    "<!--<script>",
)


def test_names_are_words_and_no_program(driver, tmp_path):
    """Whatever text a sheet has, in every block and in its document."""
    for name in NAMES:
        chart = Chart(name, name, [Line(name, (0, 1), (0, 1), 0)], title=name)
        blocks = [
            Text(name), Listing([name]), Table((name,), [(name,)]), Figure(chart, name), Code(name),
        ]  # fmt: skip
        box = Summary(name, [Number(*[name] * 4)], [(name, name)], name)
        document = {name: name}
        sheet = Sheet(name, name, [box, box], [Section(name, blocks)], [name], name, document)
        path = tmp_path / "named.html"
        path.write_text(render(sheet), "utf-8")
        open_page(driver, path)
        assert complaints(driver) == []
        assert len(drawn(driver)) == 1
        assert driver.execute_script("return window.hit") is None
        assert driver.execute_script('return document.querySelector("h1").textContent') == name
        element = 'return JSON.parse(document.getElementById("locks-public").textContent)'
        assert driver.execute_script(element) == document
        shown = driver.execute_script('return document.querySelector("main").textContent')
        assert shown.count(name) >= 18


def test_a_document_from_elsewhere_names_no_program(bundle):
    """Names are checked when a statement is read, before anything is drawn."""
    for name in NAMES:
        for known in ("uniform", "small"):
            text = json.dumps(read_document(bundle)).replace(f'"{known}"', json.dumps(name))
            with pytest.raises(ValueError, match="name"):
                read(Statement, json.loads(text))


def test_a_run_without_a_seed_has_a_page(driver):
    open_page(driver, quick(seed=None) / "report.html")
    assert min(drawn(driver)) > 1000
    assert complaints(driver) == []
