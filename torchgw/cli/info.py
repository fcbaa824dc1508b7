"""``torchgw info``: what is here to run on, and why the rest is not; ``torchgw estimate``: what a solve would take."""

from __future__ import annotations

import argparse
import os
import platform
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from torchgw._version import __version__
from torchgw.cli.align import memory_limit
from torchgw.cli.input import read_space
from torchgw.kernels import softmin_dense, softmin_stream, softmin_tiles
from torchgw.kernels.dispatch import Workload
from torchgw.options import GWOptions, LowRankOptions
from torchgw.planner import estimate
from torchgw.report.contents import none_if_nonfinite
from torchgw.request.devices import reason_unusable
from torchgw.runtime.cuda_graphs import reason_not_to_capture
from torchgw.validate import OTHER_DEVICES, no_gpu

NEEDED = ("torch", "triton", "numpy", "scipy", "scikit-learn", "joblib")
OPTIONAL = {
    "anndata": "files of cells",
    "tqdm": "progress bars",
    "matplotlib": "pictures",
    "plotly": "interactive reports",
    "shtab": "shell completion",
    "dask": "clusters, through joblib",
    "ray": "clusters, through joblib",
}
FAMILIES = {"dense": softmin_dense, "streaming": softmin_stream, "tiles": softmin_tiles}
SHAPE = (1024, 1024)
BESIDES = {
    "cpu": "these are times of solves; a command takes some seconds besides, to load torch",
    "cuda": "times are forecast for CPUs only",
}


def run_info(arguments: argparse.Namespace) -> dict[str, Any] | str:
    """What is here, and for what is not, the reason; as a table, or as JSON."""
    usable = ["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()) if reason_unusable(index) is None)]
    ways = {device: describe_backends(torch.device(device)) for device in usable}
    found = {
        "torchgw": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {name: _package_version(name) or "not installed" for name in NEEDED},
        "optional": {name: _package_version(name) or f"not installed ({use})" for name, use in OPTIONAL.items()},
        "devices": {
            name: "; ".join(filter(None, (text, summarise_backends(ways.get(name, {})))))
            for name, text in describe_devices().items()
        },
        "backends": ways,
    }
    return found if arguments.json else format_lines(found)


def describe_devices() -> dict[str, str]:
    """Each kind of device, or why there is none."""
    found = {"cpu": f"{os.cpu_count()} cores, {torch.get_num_threads()} threads in use"}
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            kind = (
                properties.gcnArchName
                if torch.version.hip
                else "sm_{}{}".format(*torch.cuda.get_device_capability(index))
            )
            found[f"cuda:{index}"] = f"{properties.name}, {kind}, {properties.total_memory / 2**30:.0f} GiB"
            if why := reason_unusable(index):
                found[f"cuda:{index}"] += f"; not used unless device='cuda' asks for it: {why}"
    else:
        found["cuda"] = f"not available: {no_gpu()}"
    for name, module in (("mps", torch.backends.mps), ("xpu", torch.xpu)):
        if module.is_available():
            found[name] = f"not used: {OTHER_DEVICES[name]}; solves run on the CPU"
    return found


def summarise_backends(ways: dict[str, dict[str, str]]) -> str:
    """What runs on a GPU, in a line; nothing for other devices."""
    if "steps" not in ways:
        return ""
    kernels = next(name for name, text in ways["dense"].items() if text == "taken")
    graphs = ways["steps"]["graphs"]
    return f"backend {kernels}, " + ("steps in graphs" if graphs == "taken" else f"no graphs: {graphs}")


def describe_backends(device: torch.device) -> dict[str, dict[str, str]]:
    """For each family of kernels and each implementation: "taken", "available", or why it is not. On a GPU, whether
    steps are captured in graphs.

    Whether something compiles is tried, in seconds, and only where it would be taken if it did.
    """
    found: dict[str, dict[str, str]] = {}
    for name, family in FAMILIES.items():
        workload = Workload(device, torch.float32, SHAPE, rank=0 if name == "dense" else 32)
        chosen = family.choose("auto", workload).name
        found[name] = {
            one.name: "taken"
            if one.name == chosen
            else one.reason_to_avoid(workload) or one.reason_unavailable(workload) or "available"
            for one in family.FAMILY
        }
    if device.type == "cuda":
        found["steps"] = {"graphs": reason_not_to_capture(device) or "taken"}
    return found


def format_lines(found: dict[str, Any]) -> str:
    """Aligned lines."""
    lines = [f"torchgw {found['torchgw']}, Python {found['python']}, {found['system']}"]
    for title in ("packages", "optional", "devices"):
        lines += ["", title, *(f"  {name:<12}  {text}" for name, text in found[title].items())]
    for device, families in found["backends"].items():
        lines += ["", f"backends on {device}"]
        for family, names in families.items():
            lines += [f"  {family:<10}  {name:<8}  {text}" for name, text in names.items()]
    return "\n".join(lines)


def run_estimate(arguments: argparse.Namespace) -> dict[str, Any] | str:
    """The forecasts as a table, or as JSON."""
    options = GWOptions(max_memory=memory_limit(arguments), low_rank=LowRankOptions(rank=arguments.rank))
    sizes = [_read_size(name, getattr(arguments, name), options.max_memory) for name in ("source", "target")]
    found = estimate(*sizes, epsilon=arguments.epsilon, options=options, device=arguments.device)
    if not arguments.json:
        return f"{sizes[0]} x {sizes[1]} {found}\n{BESIDES[torch.device(found.device).type]}"
    forecasts = [
        {name: none_if_nonfinite(value) for name, value in asdict(forecast).items()} for forecast in found.forecasts
    ]
    return {"shape": sizes, "device": found.device, "chosen": found.chosen, "forecasts": forecasts}


def _read_size(name: str, given: str, limit: int) -> int:
    """A number of points, or that of a file."""
    if given.isdecimal():
        return int(given)
    return int(read_space(name, Path(given), limit).shape[0])


def _package_version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
