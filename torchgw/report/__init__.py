"""A result as one interactive HTML page: both clouds, linked; what the search found; what is certain."""

from torchgw.report.page import plotly_script, write

__all__ = ["plotly_script", "write"]
