"""The browser of the page's tests, for the book's."""

from browser.conftest import browser

__all__ = ["browser"]
