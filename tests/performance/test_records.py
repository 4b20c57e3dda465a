import json
import statistics

import pytest

from tinyinfer import BadInput
from tinyinfer.performance.cost import decode_cost, prefill_cost
from tinyinfer.performance.records import RECORDS, listed_records, read_record, write_record
from tinyinfer.performance.shapes import find_shape


def test_every_committed_record_is_whole_and_beats_no_ceiling():
    paths = [path for path in sorted(RECORDS.glob("*.json")) if path.name != "index.json"]
    assert paths
    for path in paths:
        record = read_record(path)
        assert record["kind"] in ("phases", "comparison")
        if record["kind"] == "comparison":
            assert 0 < record["share_of_bandwidth"] <= 1
        else:
            config = find_shape(record["model"])
            for row in record["rows"]:
                prefill = prefill_cost(config, row["prompt"], weight_bytes=4, kv_bytes=4)
                assert prefill.flops / min(row["ttft_seconds"]) <= record["matmul_flops_per_second"]
                step = decode_cost(config, row["prompt"] + 1, weight_bytes=4, kv_bytes=4)
                assert (
                    step.bytes_moved / min(map(statistics.median, row["itl_seconds"]))
                    <= record["read_bytes_per_second"]
                )


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
