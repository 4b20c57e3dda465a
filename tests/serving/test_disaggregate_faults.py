"""Whole nodes that fail, random kills under load, other models and backends: each engine alone on one Ray cluster."""

import os
import random
import threading
import time

import numpy as np
import psutil
import pytest
import torch
from ray_engines import DYING, alive, engine, kill, local_cluster, no_slot_is_lost, wait_until

import tinyinfer
from tinyinfer import BadInput
from tinyinfer.performance.transfer import payload_bytes
from tinyinfer.serving import disaggregate
from tinyinfer.serving.disaggregate import object_facts, open_engine
from tinyinfer.serving.pool import Deadline
from tinyinfer.serving.router import finish
from tinyinfer.serving.workers import Order

# Ray leaves sockets and files to the interpreter's end.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(scope="module")
def cluster():
    with local_cluster() as cluster:
        yield cluster


@pytest.fixture
def one_thread():
    """As in a worker: with more, sums are split elsewhere and rounded elsewhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_grouped_heads_on_torch_agree_bit_for_bit_and_the_object_has_the_predicted_size(cluster, one_thread):
    tang = tinyinfer.load("tang", backend="torch")
    with engine(cluster, "tang", backend="torch", decode_workers=1) as router:
        for prompt, new_tokens in (("白日依山", 20), ("白", 9)):
            assert router.generate(prompt, new_tokens).token_ids == tang.generate(prompt, new_tokens).token_ids
        full = (tang.tokenizer.encode("白日依山尽，黄河入海流。") * 22)[:256]
        trace = router.trace(full, 1)
        np.testing.assert_array_equal(trace.prefill.first_token_logits, tang.start(256).prefill(full))
        trace = router.trace(full[:250], 7)
        session = tang.start(256)
        session.prefill(full[:250])
        logits = [session.decode_step(token.id) for token in trace.output_tokens[:-1]]
        assert [int(row.argmax()) for row in logits] == [token.id for token in trace.output_tokens[1:]]
        whole = session.cache.as_nested()["layer_3"]["head_1"]["V"]
        received = [step.appended["layer_3"]["head_1"]["V"] for step in trace.decode]
        np.testing.assert_array_equal(np.concatenate(received), whole[250:])
        news, reference = router.prefill_pool.workers[0].prefill(
            Order("size", 1, tuple(full), (), None, 1), Deadline(60)
        )
        assert news.payload_bytes == payload_bytes(tang.config, 256) == 256 * tang.config.kv_bytes_per_token(4)
        assert news.payload_bytes <= object_facts(reference)[0] <= 1.01 * news.payload_bytes


def test_a_whole_prefill_and_a_whole_decode_node_may_fail(cluster):
    nodes = [cluster.add_node("prefill"), cluster.add_node("decode")]
    with engine(cluster, prefill_workers=2, decode_workers=3, **DYING) as router:
        decoding = [router.submit("写诗", 8, request_id=f"slow {i}") for i in range(6)]
        streams = [request.events() for request in decoding]
        tokens = [[next(stream).token_id, next(stream).token_id] for stream in streams]
        crossing = [router.submit("写诗", 8, request_id=f"lost in transfer {i}") for i in range(2)]
        streams += [request.events() for request in crossing]
        tokens += [[next(stream).token_id] for stream in streams[6:]]
        for node in nodes:
            cluster.remove_node(node)
        for seen, stream in zip(tokens, streams, strict=True):
            seen += [event.token_id for event in stream]
        assert tokens == [[4, 5, 6, 3, 1]] * 8
        assert sum(request.recoveries for request in decoding) >= 1
        assert sum(request.recoveries for request in crossing) >= 1
        assert router.generate("写诗", 8).text == "秋天的诗"


@pytest.mark.parametrize("name", ["toy", "tang"])
def test_a_hundred_requests_at_random_times_with_random_kills_are_answered_as_if_alone(cluster, name):
    model, dice = tinyinfer.load(name), random.Random(name)
    text = "写诗秋天的白日山河海" if name == "toy" else "白日依山尽，黄河入海流。欲穷千里目，更上一层楼。"
    longest, most_new = (9, 12) if name == "toy" else (40, 48)
    jobs = [("".join(dice.choices(text, k=dice.randint(1, longest))), dice.randint(1, most_new)) for _ in range(100)]
    alone = [model.generate(*job).token_ids for job in jobs]
    with engine(cluster, name, slots=4 * (longest + most_new), max_waiting=100) as router:
        requests, kills, done = [], [], threading.Event()

        def kill_now_and_then():
            while not done.wait(dice.uniform(0.2, 0.8)):
                pool = dice.choice([router.prefill_pool, router.decode_pool, router.decode_pool])
                worker = dice.choice(pool.workers)
                if len(kills) < 8 and worker.answers(0.5):
                    kill(worker)
                    kills.append(worker.name)

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        for prompt, new_tokens in jobs:
            requests.append(router.submit(prompt, new_tokens, deadline_seconds=120))
            time.sleep(dice.expovariate(40))
        answers = [finish(request).token_ids for request in requests]
        done.set()
        killer.join()
        assert answers == alone
        assert len(kills) >= 2 and any(request.recoveries for request in requests)
        wait_until(lambda: no_slot_is_lost(router))
        assert not router._live


def test_too_few_nodes_are_named(cluster):
    refusal = pytest.raises(BadInput, match=r"7 decode workers need as many nodes .* the cluster has places for 2")
    with refusal, open_engine("toy", address=cluster.address, decode_workers=7):
        pass


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"source": "tyo"}, "Did you mean 'toy'"),
        ({"backend": "jax"}, "backend is 'jax'"),
        ({"prefill_workers": 0}, "prefill_workers is 0"),
        ({"decode_workers": 1.5}, "decode_workers is 1.5"),
        ({"slots": 0}, "slots is 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_started(options, reason, monkeypatch):
    monkeypatch.setattr(disaggregate, "LocalCluster", None)
    with pytest.raises(BadInput, match=reason), open_engine(**{"source": "toy"} | options):
        pass


def test_the_cluster_listens_on_loopback_only_and_asks_for_a_token(cluster):
    assert os.environ["RAY_AUTH_MODE"] == "token" and os.environ["RAY_USAGE_STATS_ENABLED"] == "0"
    assert cluster.address.startswith("127.0.0.1:")
    listening = {
        connection.laddr.ip
        for process in alive(psutil.Process().children(recursive=True))
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }
    assert listening and listening <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
