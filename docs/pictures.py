"""Takes the pictures of docs/pictures from the reports in benchmarks/results, with a headless Chromium.

`python docs/pictures.py` replaces all of them. Needs Pillow.
"""

import argparse
import io
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "src")]

from chromium_pipe import CHROMIUM, Page, chromium_page  # noqa: E402

from widthwise.reports.writing import write_report  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
PAGES: Mapping[str, tuple[str, str | None]] = {
    "comparison": ("compare_ffn", None),
    "sweep": ("sweep_shapes", None),
    "fit": ("ladder_small/training_flops", None),
    "analysis": ("sweep_shapes_analysis", "Feed-forward activations"),
}
"""Picture -> the result whose page it shows, and a link of the page to the section with which the picture begins."""
SECTION = """document.querySelector([...document.querySelectorAll('a[href^="#"]')].find(
  link => link.textContent.trim() === '%s').hash).getBoundingClientRect().top + scrollY"""
WIDTH, HEIGHT = 1100, 1500


def take(page: Page, report: Path, section: str | None) -> Image.Image:
    """A page as a picture, from its top or from a section on."""
    page.open(report, WIDTH, HEIGHT)
    while not page.evaluate("'drawn' in document.documentElement.dataset"):
        time.sleep(0.05)
    top = max(0, int(page.evaluate(SECTION % section)) - 30) if section else 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "page.png"
        page.screenshot(path)
        picture = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
    return picture.crop((0, top, WIDTH, min(top + HEIGHT, picture.height)))


def save(picture: Image.Image, path: Path) -> None:
    """As a PNG of 128 colours, which is what flat drawings need, and a fifth of the bytes."""
    picture.quantize(128, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "pictures")
    out: Path = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    if CHROMIUM is None:
        sys.exit("needs chromium, chromium-browser or google-chrome")
    with tempfile.TemporaryDirectory() as folder, chromium_page(CHROMIUM, Path(folder) / "profile") as page:
        for name, (result, section) in PAGES.items():
            report, *_ = write_report([RESULTS / result], Path(folder) / name)
            save(take(page, report, section), out / f"{name}.png")
            print(f"{out / name}.png: {(out / f'{name}.png').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
