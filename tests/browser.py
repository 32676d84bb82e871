"""A browser for the tests of pages: Chromium without a window, which tells what it was asked for.

Where CI=true a missing browser fails the test; elsewhere it skips it.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip
HEIGHT = 900
# every canvas, those inside Bokeh's own elements too; and how many of its pixels are drawn
DRAWN = """
const found = place => [...place.querySelectorAll("*")].flatMap(one =>
  [...(one.tagName == "CANVAS" ? [one] : []), ...(one.shadowRoot ? found(one.shadowRoot) : [])]);
return [...document.querySelectorAll(".drawing")].map(drawing => Math.max(0, ...found(drawing)
  .filter(canvas => canvas.width && canvas.height)
  .map(canvas => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data
    .filter((value, place) => place % 4 == 3 && value > 0).length)));
"""
READY = "return !window.Bokeh || Bokeh.documents.every(one => one.is_idle)"


def _program(*names: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    told = f"no {names[0]}: apt-get install chromium chromium-driver"
    if os.environ.get("CI") == "true":
        pytest.fail(told)
    pytest.skip(told)


@contextmanager
def browser() -> Iterator[Any]:
    """Selenium's driver of a new Chromium with a profile of its own."""
    binary = _program("chromium", "chromium-browser", "google-chrome")
    service = _program("chromedriver")
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    options = webdriver.ChromeOptions()
    options.binary_location = binary
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(service))
        try:
            yield driver
        finally:
            driver.quit()


def open_page(driver: Any, path: Path, width: int = 1280, dark: bool = False) -> None:
    """Show a file at this width; it is drawn when this returns."""
    from selenium.webdriver.support.ui import WebDriverWait

    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    for kind in ("browser", "performance"):
        driver.get_log(kind)  # of what was shown before
    driver.get(path.resolve().as_uri())
    WebDriverWait(driver, 60).until(lambda one: one.execute_script(READY))
    # two frames later what is idle has been painted
    driver.execute_async_script(
        "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(done))"
    )


def complaints(driver: Any) -> list[str]:
    """Errors and warnings of the console since the page was opened."""
    lines = driver.get_log("browser")
    return [line["message"] for line in lines if line["level"] in ("SEVERE", "WARNING")]


def requests(driver: Any) -> list[str]:
    """Every address that the page asked for since it was opened, data in the page apart."""
    told = (json.loads(line["message"])["message"] for line in driver.get_log("performance"))
    sent = (one["params"] for one in told if one["method"] == "Network.requestWillBeSent")
    urls = [one["request"]["url"] for one in sent]
    return [url for url in urls if not url.startswith(("data:", "blob:"))]


def drawn(driver: Any) -> list[int]:
    """For each figure of the page, how many pixels of it are drawn."""
    found: list[int] = driver.execute_script(DRAWN)
    return found
