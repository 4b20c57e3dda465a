"""Measurements as files: written by a run on the machine that they name, checked when read.

Chapters draw only the records named in `benchmarks/records/index.json`, so a reader's own recording changes no page.
"""

import hashlib
import json
import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tinyinfer.errors import BadInput

RECORDS = Path(__file__).parent.parent.parent / "benchmarks" / "records"
REQUIRED = ("kind", "date", "machine", "versions", "protocol", "rows")


def describe_machine() -> dict[str, Any]:
    """Processor, cores that this process may use, and system."""
    processor = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        processor = models[0] if models else processor
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count()
    return {"device": "cpu", "processor": processor, "cores": cores, "system": platform.system()}


def describe_versions(*packages: str) -> dict[str, str]:
    """Versions of Python and of the packages named."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def describe_commit(folder: Path = RECORDS) -> str:
    """The commit of the code that is running, with `+changes` when files differ from it; "unknown" without git."""
    git = ["git", "-C", str(folder)]
    try:
        commit = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
        # What counts is the code that measures and is measured.
        changes = subprocess.run(
            [*git, "diff", "--quiet", "HEAD", "--", ":/tinyinfer", ":/benchmarks/*.py"], capture_output=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit + ("+changes" if changes.returncode else "")


def write_record(
    path: Path,
    kind: str,
    protocol: str,
    rows: list[dict],
    packages: tuple[str, ...],
    commit: str | None = None,
    machine: dict[str, Any] | None = None,
    **facts,
) -> dict:
    """Write one record whole or not at all, stamped with date, machine, versions, commit and checksum; return it."""
    record = {
        "kind": kind,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "machine": describe_machine() | (machine or {}),
        "commit": commit or describe_commit(),
        "versions": describe_versions("numpy", *packages),
        "protocol": protocol,
        **facts,
        "rows": rows,
    }
    record["checksum"] = _checksum(record)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
    return record


def read_record(path: Path) -> dict:
    """Read one record; `BadInput` when a field is missing or the numbers are not those that were written."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as wrong:
        raise BadInput(f"{path} is no readable record: {wrong}") from None
    for field in (*REQUIRED, "checksum"):
        if not isinstance(record, dict) or field not in record:
            raise BadInput(f"{path}: the record has no field {field}")
    expected = _checksum({field: value for field, value in record.items() if field != "checksum"})
    if record["checksum"] != expected:
        raise BadInput(f"{path}: checksum is {record['checksum']}, its content gives {expected}")
    return record


def listed_records(kind: str, folder: Path = RECORDS) -> list[dict]:
    """The records of one kind that `index.json` lists, in its order."""
    names = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    records = [read_record(folder / name) for name in names]
    return [record for record in records if record["kind"] == kind]


def _checksum(record: dict) -> str:
    text = json.dumps(record, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
