"""docs/report-*.png: the page of the embedded run (`locks run --seed 0`), as a browser shows it at
two widths, light and dark. It needs the extra "test", and Chromium:

    python scripts/make_report_pictures.py [PAGE]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from browser import browser, open_page, picture  # noqa: E402  (of the tests, which look at pages too)

TALL = {1280: 4200, 390: 5600}  # pixels that are kept, from the top
COLOURS = 160


def main() -> None:
    """Play the run, or take the page that is named, and write the four pictures."""
    with tempfile.TemporaryDirectory() as folder, browser() as driver:
        page = Path(folder) / "run" / "report.html"
        if sys.argv[1:]:
            page = Path(sys.argv[1])
        else:
            command = [sys.executable, "-m", "locksfl", "run", "--seed", "0", "--out", page.parent]
            subprocess.run(command, check=True)
        for width in TALL:
            for dark in (False, True):
                open_page(driver, page, width, dark)
                shot = picture(driver, (0, 0, width, TALL[width]))
                name = f"report-{width}-{'dark' if dark else 'light'}.png"
                small = shot.quantize(COLOURS, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE)
                small.save(ROOT / "docs" / name, optimize=True)


if __name__ == "__main__":
    main()
