"""The split engine on a real Ray cluster on 127.0.0.1: real processes, real transfers, real SIGKILLs."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest
from ray_engines import DYING, engine, kill, local_cluster, no_slot_is_lost, wait_until

import tinyinfer
from tinyinfer.performance.transfer import payload_bytes
from tinyinfer.serving.cluster import driver_node
from tinyinfer.serving.disaggregate import object_facts
from tinyinfer.serving.failures import DeadlineExceeded, TransferRefused
from tinyinfer.serving.pool import Deadline
from tinyinfer.serving.router import finish
from tinyinfer.serving.workers import Order

# Ray leaves sockets and files to the interpreter's end.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def cluster():
    with local_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def toy_engine(cluster):
    with engine(cluster, **DYING) as router:
        yield router


@pytest.fixture(scope="module")
def toy():
    return tinyinfer.load("toy")


def test_workers_are_processes_on_different_nodes(toy_engine):
    facts = [worker.facts() for worker in (*toy_engine.prefill_pool.workers, *toy_engine.decode_pool.workers)]
    assert len({fact["pid"] for fact in facts} | {os.getpid()}) == 4
    assert len({fact["node"] for fact in facts} | {driver_node()}) == 4


def test_the_walk_gives_the_answer_of_the_undivided_model(toy_engine, toy):
    trace = toy_engine.trace("写诗", 8)
    assert trace.result.final_output == "秋天的诗"
    assert [token.id for token in trace.output_tokens] == toy.generate("写诗", 8).token_ids
    assert trace.transfer.bytes == payload_bytes(toy.config, 2)


def test_rows_and_logits_are_those_of_the_undivided_model_bit_for_bit(toy_engine, toy):
    trace = toy_engine.trace("写诗", 5)
    session = toy.start(capacity=6)
    np.testing.assert_array_equal(trace.prefill.first_token_logits, session.prefill([2, 3]))
    for token in trace.output_tokens[:-1]:
        session.decode_step(token.id)
    for layer, heads in session.cache.as_nested().items():
        for head, kinds in heads.items():
            for kind, block in kinds.items():
                parts = [
                    stage[layer][head][kind] for stage in (trace.prefill.kv_cache, *(s.appended for s in trace.decode))
                ]
                np.testing.assert_array_equal(np.concatenate(parts), block)


def test_the_cache_crosses_from_store_to_store_and_never_to_the_driver(toy_engine):
    prefill, decode = toy_engine.prefill_pool.workers[0], toy_engine.decode_pool.workers[0]
    order = Order("by hand", 1, (2, 3), (), None, 5)
    news, reference = prefill.prefill(order, Deadline(30))
    assert object_facts(reference)[1] == {prefill.facts()["node"]}
    order = replace(order, next_token=news.next_token)
    arrived = decode.receive(order, reference, Deadline(30))
    assert arrived.payload_bytes == news.payload_bytes and arrived.checksums == news.checksums
    nodes = object_facts(reference)[1]
    assert nodes == {prefill.facts()["node"], decode.facts()["node"]} and driver_node() not in nodes
    assert decode.facts()["free_slots"] == 64 - 6
    with pytest.raises(TransferRefused, match="request_id 'by hand' is in use here already"):
        decode.receive(order, reference, Deadline(30))
    assert [step.next_token for step in decode.decode("by hand", Deadline(30))] == [5, 6, 3, 1]
    assert decode.facts()["free_slots"] == 64


@pytest.mark.parametrize(
    ("moment", "recoveries"),
    [("before transfer", 1), ("during transfer", 1), ("after transfer", 1), ("step 1", 1), ("step 3", 1)],
)
def test_a_decode_worker_killed_costs_no_token(toy_engine, moment, recoveries):
    request = toy_engine.submit("写诗", 8, request_id=f"kill {moment}", want_rows=True)
    assert finish(request).token_ids == [4, 5, 6, 3, 1]
    assert request.recoveries == recoveries


def test_a_prefill_worker_killed_at_work_costs_no_token(toy_engine):
    request = toy_engine.submit("写诗", 8, request_id="kill prefill")
    assert finish(request).token_ids == [4, 5, 6, 3, 1]
    assert request.recoveries == 1


def test_a_prefill_worker_killed_in_mid_transfer_costs_no_token(toy_engine):
    request = toy_engine.submit("写诗", 8, request_id="lost in transfer")
    events = request.events()
    assert next(events).text == "秋"  # prefilled; the decode worker is about to fetch
    kill(toy_engine.prefill_pool.workers[0])
    assert [event.token_id for event in events] == [5, 6, 3, 1]
    assert request.recoveries == 1


@pytest.mark.parametrize("damage", ["flip K", "flip V", "layer order", "dtype", "layout", "short", "stale"])
def test_a_damaged_payload_is_noticed_and_sent_anew(toy_engine, damage):
    request = toy_engine.submit("写诗", 8, request_id=damage)
    assert finish(request).token_ids == [4, 5, 6, 3, 1]
    assert (request.refusals, request.recoveries) == (1, 0)


def test_a_payload_that_is_always_damaged_ends_the_request_by_name(toy_engine):
    with pytest.raises(TransferRefused, match="always flip V: checksum of V in layer 1"):
        toy_engine.generate("写诗", 8, request_id="always flip V")
    wait_until(lambda: no_slot_is_lost(toy_engine))


def test_with_no_worker_left_the_deadline_ends_the_request_and_says_so(toy_engine):
    started = time.perf_counter()
    with pytest.raises(DeadlineExceeded, match=r"within 2.0 s .* recoveries\)"):
        toy_engine.generate("写诗", 8, request_id="always step 1", deadline_seconds=2.0)
    assert time.perf_counter() - started < 20
    wait_until(lambda: no_slot_is_lost(toy_engine))
    assert toy_engine.generate("写诗", 8).text == "秋天的诗"


def test_a_client_that_goes_away_in_mid_stream_frees_the_slots(toy_engine):
    stream = toy_engine.stream("写诗", 8, request_id="slow")
    assert [next(stream).text, next(stream).text] == ["秋", "天"]
    stream.close()
    wait_until(lambda: no_slot_is_lost(toy_engine))
