"""One page of all stored results: ``python -m benchmarks report`` writes index.html and its pictures beside this file.

The page is a function of the result files alone, so that the same results give the same page.
"""

from benchmarks.report.page import run

__all__ = ["run"]
