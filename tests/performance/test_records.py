import json
import statistics

import pytest

from tinyinfer import BadInput
from tinyinfer.performance.cost import decode_cost, prefill_cost
from tinyinfer.performance.records import RECORDS, listed_records, read_record, write_record
from tinyinfer.performance.shapes import find_shape


def shares_of_ceilings(record) -> list[float]:
    """Achieved over measured peak, for every number of a record that has one; above 1 something is wrong."""
    if record["kind"] == "comparison":
        return [share for name, share in record.items() if name.startswith("share_of_bandwidth")]
    if record["kind"] == "bench":
        return [row[share] for row in record["rows"] for share in ("mfu", "mbu")] + [
            share for row in record["rows"] for share in row.get("published", {}).values()
        ]
    if record["kind"] == "decode steps":
        return [
            max(row["limits"]["compute_seconds"], row["limits"]["memory_seconds"])
            / statistics.median(row["samples_seconds"])
            for row in record["rows"]
        ]
    config = find_shape(record["model"])
    shares = []
    for row in record["rows"]:
        prefill = prefill_cost(config, row["prompt"], weight_bytes=4, kv_bytes=4)
        shares.append(prefill.flops / min(row["ttft_seconds"]) / record["matmul_flops_per_second"])
        step = decode_cost(config, row["prompt"] + 1, weight_bytes=4, kv_bytes=4)
        seconds = min(map(statistics.median, row["itl_seconds"]))
        shares.append(step.bytes_moved / seconds / record["read_bytes_per_second"])
    return shares


MEASURED = [path for path in sorted(RECORDS.glob("*.json")) if path.name != "index.json"]


@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_every_committed_record_is_whole_and_beats_no_ceiling(path):
    record = read_record(path)
    without_ceiling = ("transfer", "interference", "trace")
    assert record["kind"] in ("phases", "comparison", "bench", "decode steps", *without_ceiling)
    if record["kind"] not in without_ceiling:
        shares = shares_of_ceilings(record)
        assert shares and all(0 < share <= 1 for share in shares), shares


def test_a_record_that_beats_a_ceiling_would_be_noticed():
    row = {"mfu": 0.5, "mbu": 1.02, "published": {"mfu": 0.1, "mbu": 0.2}}
    assert max(shares_of_ceilings({"kind": "bench", "rows": [row]})) > 1
    row = {"limits": {"compute_seconds": 0.1, "memory_seconds": 3.0}, "samples_seconds": [2.0]}
    assert max(shares_of_ceilings({"kind": "decode steps", "rows": [row]})) > 1


def test_the_index_lists_files_that_exist():
    assert listed_records("phases")


def test_a_changed_number_or_a_missing_field_is_noticed(tmp_path):
    path = tmp_path / "record.json"
    write_record(path, "test", "none", [{"seconds": [0.5]}], ())
    assert read_record(path)["rows"] == [{"seconds": [0.5]}]
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"rows": [{"seconds": [0.25]}]}))
    with pytest.raises(BadInput, match="checksum"):
        read_record(path)
    del record["machine"]
    path.write_text(json.dumps(record))
    with pytest.raises(BadInput, match="machine"):
        read_record(path)
    path.write_text("[1, 2")
    with pytest.raises(BadInput, match="no readable record"):
        read_record(path)
