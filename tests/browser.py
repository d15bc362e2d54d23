"""A headless Chromium for the tests of the page, without a network."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=1280,800"
)


def chromium() -> tuple[str, str]:
    """The browser and its driver, or a skipped test."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    driver = shutil.which("chromedriver")
    if not browser or not driver:
        missing = " and ".join(name for name, found in (("chromium", browser), ("chromedriver", driver)) if not found)
        pytest.skip(f"no {missing} on the path: what a browser does with the page needs one (Debian: chromium-driver)")
    pytest.importorskip("selenium", reason="selenium drives the browser: pip install selenium")
    return browser, driver


@contextmanager
def opened(profile: Path, *, offline: bool = True) -> Iterator[Any]:
    """A driver with a fresh profile; offline, so that whatever the page would fetch fails and is told."""
    browser, driver_path = chromium()
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = browser
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(driver_path))
    try:
        if offline:
            driver.execute_cdp_cmd("Network.enable", {})
            off = {"offline": True, "latency": 0, "downloadThroughput": 0, "uploadThroughput": 0}
            driver.execute_cdp_cmd("Network.emulateNetworkConditions", off)
        yield driver
    finally:
        driver.quit()


def errors(driver: Any) -> list[str]:
    """What the console has complained about since last asked."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
