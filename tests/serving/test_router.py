"""The router with workers in this process: order, back-pressure, deadlines, and recovery from every kind of loss."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from local_workers import local_router

import tinyinfer
from tinyinfer import BadInput
from tinyinfer.serving.failures import DeadlineExceeded, QueueFull, TransferRefused
from tinyinfer.serving.pool import Deadline, Pool
from tinyinfer.serving.request import Request
from tinyinfer.serving.router import finish
from tinyinfer.serving.trace_format import trace_as_dict
from tinyinfer.serving.workers import DecodeWorker, Order, PrefillWorker

ANSWER = [4, 5, 6, 3, 1]  # 秋天的诗 and the end


@pytest.fixture(scope="module")
def toy():
    return tinyinfer.load("toy")


def all_free(router):
    """The router's count of free slots, and each decode worker's own, are all there again."""
    return set(router.prefill_pool.free_slots.values()) == {1} and all(
        router.decode_pool.free_slots[worker.name] == worker.worker.free_slots == worker.slots
        for worker in router.decode_pool.workers
    )


def wait_until(condition, seconds=5.0):
    limit = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < limit, "it did not come to be"
        time.sleep(0.005)


def test_split_answers_are_those_of_the_undivided_model(tang):
    router = local_router(tang, slots=256)
    for prompt, new_tokens in (("白日依山", 11), ("白", 7), ("写诗", 5), ("白日依山尽", 1)):
        split, whole = router.generate(prompt, new_tokens), tang.generate(prompt, new_tokens)
        assert (split.token_ids, split.text) == (whole.token_ids, whole.text)
        assert split.prompt_token_ids == whole.prompt_token_ids
    assert all_free(router)


def test_a_prompt_of_exactly_the_capacity_still_gives_its_one_token(tang):
    prompt = (tang.tokenizer.encode("白日依山尽，黄河入海流。") * 22)[:256]
    router = local_router(tang, slots=256)
    assert router.generate(prompt, 1).token_ids == tang.generate(prompt, 1).token_ids
    assert router.generate(prompt[:255], 2).token_ids == tang.generate(prompt[:255], 2).token_ids


def test_tokens_come_as_a_stream(toy):
    router = local_router(toy)
    events = list(router.stream("写诗", 8))
    assert [event.token_id for event in events] == ANSWER
    assert [event.text for event in events] == ["秋", "天", "的", "诗", ""]
    seconds = [event.seconds for event in events]
    assert seconds == sorted(seconds) and seconds[0] > 0


@pytest.mark.parametrize("moment", ["before", "during", "after", 1, 2, 3, 4])
def test_a_decode_worker_that_dies_costs_time_and_no_token(toy, moment):
    router = local_router(toy, decode=2)
    dying = router.decode_pool.workers[0]
    dying.deaths = [moment]
    trace = router.trace("写诗", 8)
    assert [token.id for token in trace.output_tokens] == ANSWER
    assert trace.result.timing.recoveries == 1 and dying.deaths == []
    undisturbed = trace_as_dict(local_router(toy).trace("写诗", 8), full=True)
    recovered = trace_as_dict(trace, full=True)
    assert recovered["transfer"] == undisturbed["transfer"]
    assert [step["generated_tokens"] for step in recovered["decode"]] == [
        step["generated_tokens"] for step in undisturbed["decode"]
    ]
    np.testing.assert_allclose(
        trace.decode[-1].appended["layer_1"]["head_0"]["K"],
        np.array(undisturbed["decode"][-1]["appended"]["layer_1"]["head_0"]["K"]),
        atol=1e-5,
    )
    wait_until(lambda: all_free(router))


def test_recovery_prefills_the_prompt_and_what_was_fed_and_keeps_the_token_in_hand(toy):
    router = local_router(toy)
    (dying,) = router.decode_pool.workers
    dying.deaths = [3]  # the third step is lost on its way: two came through
    assert router.generate("写诗", 8).token_ids == ANSWER
    first, second = router.prefill_pool.workers[0].orders
    assert (first.attempt, first.generated_tokens, first.next_token) == (1, (), None)
    assert (second.attempt, second.generated_tokens, second.next_token) == (2, (4, 5), 6)
    assert second.length == 4


def test_many_deaths_of_one_request_are_survived(toy):
    router = local_router(toy, decode=2)
    for worker in router.decode_pool.workers:
        worker.deaths = ["before", 1, "during", "after", 2]
    done = router.submit("写诗", 8)
    assert finish(done).token_ids == ANSWER
    assert done.recoveries >= 5
    wait_until(lambda: all_free(router))


def test_a_cache_that_is_gone_before_it_was_fetched_is_made_again(toy):
    router = local_router(toy)
    router.decode_pool.workers[0].gone_payloads = 2
    assert router.generate("写诗", 8).token_ids == ANSWER
    assert len(router.prefill_pool.workers[0].orders) == 3


def test_a_damaged_cache_is_sent_anew_and_a_third_one_ends_the_request(toy):
    def flip(payload):
        keys = payload.keys.copy()
        keys.view(np.uint32)[0, 0, 0, 0] ^= 1
        return replace(payload, keys=keys)

    def stale(payload):
        return replace(payload, header=replace(payload.header, attempt=0))

    router = local_router(toy)
    prefill = router.prefill_pool.workers[0]
    prefill.faults = [flip, stale]
    assert router.generate("写诗", 8).token_ids == ANSWER
    assert [order.attempt for order in prefill.orders] == [1, 2, 3]
    prefill.faults = [flip, flip, flip]
    with pytest.raises(TransferRefused, match="checksum of K in layer 0"):
        router.generate("写诗", 8)
    assert all_free(router)


def test_without_a_living_worker_the_deadline_ends_the_request_and_says_so(toy):
    router = local_router(toy, decode=2)
    for worker in router.decode_pool.workers:
        worker.dead = True
    with pytest.raises(DeadlineExceeded, match=r"req_001 .* within 0.4 s \(1 tokens made.*0 of 2 are alive"):
        router.generate("写诗", 8, deadline_seconds=0.4)
    router.decode_pool.workers[0].dead = False
    assert router.generate("写诗", 8).token_ids == ANSWER  # one came back
    router.prefill_pool.workers[0].dead = True
    with pytest.raises(DeadlineExceeded, match="no prefill worker"):
        router.generate("写诗", 8, deadline_seconds=0.3)


class Gate:
    """Holds up a worker's decode until it is opened."""

    def __init__(self, worker):
        self.open, self.entered, self.right = threading.Event(), threading.Event(), worker.decode
        worker.decode = self

    def __call__(self, request_id, deadline):
        for step in self.right(request_id, deadline):
            self.entered.set()
            while not self.open.wait(0.01):
                if deadline.passed:
                    raise DeadlineExceeded("gate")
            yield step


def test_the_decode_worker_with_most_free_slots_is_chosen(toy):
    router = local_router(toy, decode=2)
    first, second = router.decode_pool.workers
    gate = Gate(first)
    long = router.submit("写诗", 8)
    assert gate.entered.wait(5)
    assert router.decode_pool.free_slots == {"decode 0": 64 - 9, "decode 1": 64}
    assert router.generate("秋", 4).token_ids == [5, 1]
    gate.open.set()
    finish(long)
    assert (first.served, second.served) == (["req_001"], ["req_002"])


def test_requests_are_served_in_the_order_of_their_arrival_also_when_a_later_one_would_fit(toy):
    router = local_router(toy, slots=17)
    worker = router.decode_pool.workers[0]
    gate = Gate(worker)
    first = router.submit("写诗", 8)  # 9 of 17 slots
    assert gate.entered.wait(5)
    large, small = router.submit("写山", 9), router.submit("白", 2)  # 10 do not fit yet, 2 would
    time.sleep(0.1)
    assert worker.served == ["req_001"]
    gate.open.set()
    assert [finish(request).text for request in (first, large, small)] == ["秋天的诗", "白日的山", "日"]
    assert worker.served == ["req_001", "req_002", "req_003"]


def test_the_cache_stays_with_its_prefill_worker_until_there_is_room(toy):
    """Back-pressure: at most one cache per prefill worker waits, further requests wait before prefill."""
    router = local_router(toy, slots=10)
    gate = Gate(router.decode_pool.workers[0])
    requests = [router.submit("写诗", 8)]
    assert gate.entered.wait(5)
    requests += [router.submit("写诗", 8) for _ in range(3)]
    wait_until(lambda: len(router.prefill_pool.workers[0].orders) == 2)
    time.sleep(0.1)
    assert len(router.prefill_pool.workers[0].orders) == 2
    gate.open.set()
    assert [finish(request).token_ids for request in requests] == [ANSWER] * 4
    assert all_free(router)


def test_a_full_queue_refuses_the_next_request_at_once(toy):
    router = local_router(toy, slots=10, max_waiting=2)
    gate = Gate(router.decode_pool.workers[0])
    requests = [router.submit("写诗", 8)]
    assert gate.entered.wait(5)
    requests.append(router.submit("写诗", 8))
    wait_until(lambda: requests[1].started)
    requests += [router.submit("写诗", 8) for _ in range(2)]
    with pytest.raises(QueueFull, match="2 requests wait already; max_waiting is 2"):
        router.submit("写诗", 8)
    gate.open.set()
    assert [finish(request).token_ids for request in requests] == [ANSWER] * 4
    assert router.generate("写诗", 8).token_ids == ANSWER


def test_a_client_that_stops_reading_frees_its_slots(toy):
    router = local_router(toy)
    gate = Gate(router.decode_pool.workers[0])
    stream = router.stream("写诗", 8)
    assert next(stream).text == "秋"
    assert gate.entered.wait(5)
    stream.close()
    wait_until(lambda: all_free(router) and not router._live)


def test_a_deadline_in_mid_stream_frees_the_slots(toy, monkeypatch):
    router, cancelled = local_router(toy), []
    worker = router.decode_pool.workers[0]
    Gate(worker)
    monkeypatch.setattr(worker, "cancel", lambda request_id, _: cancelled.append(request_id) or True)
    seen = []
    with pytest.raises(DeadlineExceeded, match=r"within 0.3 s \(1 tokens made"):
        for event in router.stream("写诗", 8, deadline_seconds=0.3):
            seen.append(event.token_id)
    assert seen == [4] and cancelled == ["req_001"]
    wait_until(lambda: all_free(router))


def test_a_decode_worker_that_does_not_stop_is_lent_to_nobody_until_it_answers(toy, monkeypatch):
    router = local_router(toy)
    worker = router.decode_pool.workers[0]
    gate = Gate(worker)
    monkeypatch.setattr(worker, "cancel", lambda *_: False)
    monkeypatch.setattr(worker, "answers", lambda patience_seconds: gate.open.is_set())
    with pytest.raises(DeadlineExceeded):
        router.generate("写诗", 8, deadline_seconds=0.2)
    assert router.decode_pool.living == 0
    gate.open.set()
    wait_until(lambda: router.decode_pool.living == 1)
    assert router.generate("写诗", 8).token_ids == ANSWER


def test_a_request_stopped_while_its_cache_is_on_the_way_frees_its_slots(toy):
    worker, prefill = DecodeWorker(toy, 64), PrefillWorker(toy)
    order = Order("stopped", 1, (2, 3), (), None, 8)
    news, payload = prefill.prefill(order)
    fetching, go_on = threading.Event(), threading.Event()

    def fetch(stopped):
        fetching.set()
        assert go_on.wait(5) and stopped()
        return payload

    receiving = threading.Thread(target=worker.receive, args=(replace(order, next_token=news.next_token), fetch))
    receiving.start()
    assert fetching.wait(5) and worker.free_slots == 64 - 9
    assert not worker.cancel("stopped", 0.05)
    go_on.set()
    receiving.join()
    assert worker.free_slots == 64
    with pytest.raises(TransferRefused):
        list(worker.decode("stopped"))


def test_a_request_whose_cache_has_arrived_can_be_stopped_at_once(toy):
    worker, prefill = DecodeWorker(toy, 64), PrefillWorker(toy)
    order = Order("stopped", 1, (2, 3), (), None, 8)
    news, payload = prefill.prefill(order)
    worker.receive(replace(order, next_token=news.next_token), lambda stopped: payload)
    assert worker.cancel("stopped", 0.05) and worker.free_slots == 64
    assert worker.cancel("unknown", 0.05)


def test_closing_stops_what_is_under_way_and_takes_no_more(toy):
    router = local_router(toy)
    Gate(router.decode_pool.workers[0])
    request = router.submit("写诗", 8)
    router.close()
    with pytest.raises(DeadlineExceeded):
        finish(request)
    with pytest.raises(QueueFull, match="closed"):
        router.submit("写诗", 8)
    assert all_free(router) and not router._threads


def test_two_requests_of_one_id_are_refused_and_an_id_may_be_used_again(toy):
    router = local_router(toy)
    gate = Gate(router.decode_pool.workers[0])
    first = router.submit("写诗", 8, request_id="mine")
    with pytest.raises(BadInput, match="request_id 'mine' is in use"):
        router.submit("写山", 8, request_id="mine")
    gate.open.set()
    assert finish(first).token_ids == ANSWER
    assert router.generate("写诗", 8, request_id="mine").token_ids == ANSWER


def test_a_decode_worker_refuses_a_second_request_of_one_id_and_keeps_the_first(toy):
    router = local_router(toy)
    prefill, decode = router.prefill_pool.workers[0].worker, router.decode_pool.workers[0].worker
    order = Order("twice", 1, (2, 3), (), None, 8)
    news, payload = prefill.prefill(order)
    order = replace(order, next_token=news.next_token)
    decode.receive(order, lambda stopped: payload)
    with pytest.raises(TransferRefused, match="request_id 'twice' is in use here already"):
        decode.receive(order, lambda stopped: payload)
    assert decode.free_slots == 64 - 9
    assert [step.next_token for step in decode.decode("twice")] == ANSWER[1:]
    assert decode.free_slots == 64
    with pytest.raises(TransferRefused, match="no cache of request 'twice'"):
        list(decode.decode("twice"))
    with pytest.raises(TransferRefused, match="needs 99 slots; 64 are free"):
        decode.receive(replace(order, max_new_tokens=98), lambda stopped: payload)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": "x"}, "does not know 'x'"),
        ({"prompt": [12]}, "token id 12"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"max_new_tokens": True}, "max_new_tokens is True"),
        ({"max_new_tokens": 32}, "need 33 slots; a decode worker has 64 and model toy reads at most 32"),
        ({"deadline_seconds": 0}, "deadline_seconds is 0"),
        ({"deadline_seconds": float("nan")}, "deadline_seconds is nan"),
    ],
)
def test_a_bad_request_is_refused_by_name_before_anything_is_done(toy, options, reason):
    router = local_router(toy)
    with pytest.raises(BadInput, match=reason):
        router.submit(**{"prompt": "写诗", "max_new_tokens": 8} | options)
    assert not router._live and router.prefill_pool.workers[0].orders == []


def test_parts_of_the_time_add_up_to_the_second_token(toy):
    timing = local_router(toy).trace("写诗", 8).result.timing
    assert timing.decode_ttft_seconds == pytest.approx(timing.token_seconds[1], abs=2e-3)
    assert timing.ttft_seconds == timing.token_seconds[0] >= timing.queue_seconds + timing.prefill_seconds
    assert timing.client_timing.ttft_seconds == timing.ttft_seconds
    assert 0 < timing.overhead_seconds < timing.decode_ttft_seconds


def test_an_unexpected_error_reaches_the_client(toy, monkeypatch):
    router = local_router(toy)

    def broken(*_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Request, "take_arrived", broken)
    with pytest.raises(ZeroDivisionError):
        router.generate("写诗", 8)
    wait_until(lambda: all(router.decode_pool.free_slots[w.name] == w.slots for w in router.decode_pool.workers))


def test_a_pool_lends_in_the_order_of_arrival_whatever_the_order_of_asking():
    class Worker:
        name = "only"

    pool, got = Pool("decode", [Worker()], slots=5, places=5), []
    held = pool.take(5, 1, Deadline(5))
    threads = []
    for arrival in (4, 2, 3):

        def ask(arrival=arrival):
            with pool.take(5, arrival, Deadline(5)):
                got.append(arrival)

        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    wait_until(lambda: len(pool._waiting) == 3)
    held.end()
    held.end()  # twice gives back once
    for thread in threads:
        thread.join()
    assert got == [2, 3, 4]
    assert pool.free_slots == {"only": 5}


def test_no_more_requests_than_places_use_one_worker():
    class Worker:
        name = "only"

    pool = Pool("decode", [Worker()], slots=5, places=2)
    pool.take(1, 1, Deadline(1)), pool.take(1, 2, Deadline(1))
    with pytest.raises(
        DeadlineExceeded, match=r"no decode worker with 1 free slots: 1 of 1 are alive, with \[3\] of 5"
    ):
        pool.take(1, 3, Deadline(0.05))
