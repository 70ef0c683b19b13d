"""What a run leaves in its folder, read back."""

import json
from pathlib import Path
from typing import Any


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`."""
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
