"""A Ray cluster of nodes: start one on this machine, or join one that runs. What its nodes do stands elsewhere."""

import logging
import os
import secrets
import socket
from pathlib import Path
from typing import Any

from tinyinfer.errors import BadInput
from tinyinfer.serving.failures import WorkerLost

try:
    import ray
    import ray.exceptions
    from ray._private import ray_constants
    from ray._raylet import Config  # type: ignore[attr-defined]
    from ray.cluster_utils import Cluster
except ModuleNotFoundError as missing:
    raise BadInput(f"a split engine needs {missing.name}: pip install 'tinyinfer[cluster]'") from None

LOOPBACK = "127.0.0.1"
# What the reader has set in the environment stays.
SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_IGNORE_UNHANDLED_ERRORS": "1",  # of a call whose answer nobody waits for any more
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # else a warning about a default that will change
}
START_SECONDS = 120.0
START_TRIES = 3


class LocalCluster:
    """Several Ray nodes on this machine, each with processes and an object store of its own, on 127.0.0.1 only."""

    def __init__(self, prefill_nodes: int = 1, decode_nodes: int = 1, store_bytes: int = 200_000_000):
        _apply_settings()
        _have_token()
        self._options = {
            "node_ip_address": LOOPBACK,
            "include_dashboard": False,
            "object_store_memory": store_bytes,
        }
        for tries_left in reversed(range(START_TRIES)):
            try:
                self._start(prefill_nodes, decode_nodes)
                break
            except Exception as late:  # Ray raises nothing more special when a node takes longer than 30 s to start
                self.close()
                if not tries_left:
                    reason = str(late).strip().splitlines()[0]
                    raise WorkerLost(f"no Ray cluster could be started on this machine: {reason}") from None

    def _start(self, prefill_nodes: int, decode_nodes: int) -> None:
        self._cluster = Cluster()
        self._cluster.add_node(num_cpus=0, include_log_monitor=False, no_monitor=True, **self._options)
        for kind, count in (("prefill", prefill_nodes), ("decode", decode_nodes)):
            for _ in range(count):
                self.add_node(kind, wait=False)
        self._cluster.wait_for_nodes(timeout=START_SECONDS)

    @property
    def address(self) -> str:
        """Where drivers connect."""
        return str(self._cluster.address)

    def add_node(self, kind: str, wait: bool = True) -> Any:
        """One more node with room for one worker of this kind."""
        return self._cluster.add_node(wait=wait, num_cpus=1, resources={kind: 1}, **self._options)

    def remove_node(self, node: Any) -> None:
        """Kill a node with everything on it, as when a machine fails."""
        self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        """End all of its processes."""
        self._cluster.shutdown()


def connect(address: str) -> None:
    """Make this process a driver of the cluster at `address` (host:port). Raises `BadInput` when that fails."""
    if ray.is_initialized():
        raise BadInput("this process is connected to a Ray cluster already; close that engine first")
    _require_listener(address)
    _apply_settings()
    own = address.startswith((LOOPBACK, "localhost"))
    kept = ray_constants.ENABLE_RAY_CLUSTER
    # ray.init replaces 127.0.0.1 by the machine's outward address, at which a loopback-only cluster does not listen.
    ray_constants.ENABLE_RAY_CLUSTER = kept and not own
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.RayError) as wrong:
        reason = str(wrong).strip().splitlines()[0]
        raise BadInput(f"no Ray cluster can be joined at {address}: {reason}") from None
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = kept


def _require_listener(address: str) -> None:
    """Ray may wait for minutes where nobody listens, so knock first."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError, OverflowError) as wrong:
        raise BadInput(f"no Ray cluster can be joined at {address}: {wrong}") from None


def driver_node() -> str:
    """The node that this process, and so the router, belongs to."""
    return ray.get_runtime_context().get_node_id()


def _apply_settings() -> None:
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
    Config.initialize("")  # Ray read its settings when it was imported; it may have been imported by others
    logging.getLogger("ray").setLevel(logging.ERROR)


def _have_token() -> None:
    """A cluster of our own asks for a token that nobody else knows, unless the reader keeps one already."""
    if not (
        os.environ.get("RAY_AUTH_TOKEN")
        or os.environ.get("RAY_AUTH_TOKEN_PATH")
        or (Path.home() / ".ray" / "auth_token").exists()
    ):
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
