"""A browser for the tests of pages: Chromium without a window, which tells what it was asked for.

Where CI=true a missing browser fails the test; elsewhere it skips it.
"""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars",
)  # fmt: skip
HEIGHT = 900
PLACES = """
return [...document.querySelectorAll("figure")].map(one => one.getBoundingClientRect())
  .map(box => [box.left + scrollX, box.top + scrollY, box.width, box.height]);
"""


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
    """Show a file at this width; it is painted when this returns."""
    size = {"width": width, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    for kind in ("browser", "performance"):
        driver.get_log(kind)  # of what was shown before
    driver.get(path.resolve().as_uri())
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


def picture(driver: Any, box: Sequence[float], scale: float = 1) -> Image.Image:
    """What is painted at (left, top, width, height) of the page."""
    clip = dict(zip(("x", "y", "width", "height"), box, strict=True)) | {"scale": scale}
    shot = {"captureBeyondViewport": True, "format": "png", "clip": clip}
    answer = driver.execute_cdp_cmd("Page.captureScreenshot", shot)
    return Image.open(io.BytesIO(base64.b64decode(answer["data"]))).convert("RGB")


def drawn(driver: Any) -> list[int]:
    """For each figure of the page, how many pixels of it, above its caption, are not its ground."""
    found = []
    caption = 'return [...document.querySelectorAll("figcaption")].map(one => one.offsetHeight)'
    boxes = zip(driver.execute_script(PLACES), driver.execute_script(caption), strict=True)
    for (left, top, width, height), words in boxes:
        shot = np.asarray(picture(driver, (left, top, width, height - words - 4))).astype(int)
        found.append(int((abs(shot - shot[0, -1]).sum(axis=-1) > 24).sum()))
    return found
