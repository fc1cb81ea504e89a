"""A real browser without a window, for tests of pages; they skip by name where there is none."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

# WebGL by the CPU: there is no screen, and mostly no GPU, where tests run
_FLAGS = (
    *("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--window-size=960,640", "--hide-scrollbars"),
    *("--use-gl=angle", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"),
)


@contextmanager
def open_browser(profile: Path) -> Iterator[Any]:
    """Chromium, driven by selenium; skips the test where one of the three is absent."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is absent (extra dev)")
    program, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if program is None or driver is None:
        pytest.skip("chromium or chromium-driver is absent (apt install chromium chromium-driver)")
    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in (*_FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    try:
        yield browser
    finally:
        browser.quit()


class Page:
    """What a test reads from, and types into, the viewer's page."""

    def __init__(self, browser: Any, url: str) -> None:
        self.browser = browser
        browser.get(url)

    def text(self) -> str:
        """Everything that can be read in the panel."""
        return str(self.browser.execute_script("return document.body.innerText"))

    def wait_for(self, condition: Callable[[], Any], what: str, timeout_s: float = 60.0) -> Any:
        """The first true value of ``condition``."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            value = condition()
            if value:
                return value
            time.sleep(0.1)
        raise AssertionError(f"timed out after {timeout_s} s: {what}; the page says {self.text()!r:.2000}")

    def wait_for_text(self, words: str, timeout_s: float = 60.0) -> None:
        """Until the page says ``words``."""
        self.wait_for(lambda: words in self.text(), f"no {words!r}", timeout_s)

    def field(self, label: str) -> Any:
        """The input beside a label."""
        path = f"//label[normalize-space()='{label}']/following::*[self::input or self::textarea][1]"
        return self.wait_for(lambda: self.browser.find_elements("xpath", path), f"no field {label!r}")[0]

    def button(self, label: str) -> Any:
        """A button by its words."""
        path = f"//button[normalize-space()='{label}']"
        return self.wait_for(
            lambda: [b for b in self.browser.find_elements("xpath", path) if b.is_displayed()], f"no button {label!r}"
        )[0]

    def press(self, words: str) -> None:
        """Click on what says exactly ``words``."""
        path = f"//*[normalize-space(text())='{words}']"
        self.wait_for(lambda: self.browser.find_elements("xpath", path), f"no {words!r}")[0].click()

    def type(self, label: str, words: str) -> None:
        """Type into a field, and let the page send it: it does so a little later, and this machine may be busy."""
        field = self.field(label)
        field.clear()
        field.send_keys(words)
        time.sleep(1.0)

    def ask(self, sentence: str) -> None:
        """Type a question and press Enter, as fast as can be."""
        self.field("Question").send_keys(sentence + "\n")
