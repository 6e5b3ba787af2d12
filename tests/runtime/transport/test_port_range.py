"""Gloo listens on ports that the system gives out: with its range set, on no others."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIRST, LAST = 30000, 30063
PROGRAM = """
import json, threading
from datetime import timedelta
import torch.distributed as dist
from recycle_runtime.cli.options.resources import check_ports
from recycle_runtime.protocol.address import port_range
from recycle_runtime.transport.gloo import meet, meet_neighbours
from recycle_runtime.transport.listeners import read_listeners

check_ports("30000-30063", port_range())
table, groups, size = dist.HashStore(), {}, 6

def join(rank):
    store = dist.PrefixStore("sparse", table)
    groups[rank] = meet_neighbours(store, rank, size, timedelta(seconds=120))

threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
found = read_listeners([table.get(f"sparse/0/{rank}") for rank in range(size)])
print(json.dumps([len(groups), [each.port for each in found]]))
"""


@pytest.mark.slow
def test_a_range_that_was_set_in_a_network_of_its_own() -> None:
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        pytest.skip("unshare and ip are not installed")
    range_file = "/proc/sys/net/ipv4/ip_local_port_range"
    before = f"ip link set lo up && echo {FIRST} {LAST} >{range_file}"
    alone = ["unshare", "--user", "--map-root-user", "--net", "sh", "-c"]
    if subprocess.run([*alone, before], capture_output=True).returncode:
        pytest.skip("no network namespaces here")
    path = str(Path(__file__).resolve().parents[3] / "runtime")
    done = subprocess.run(
        [*alone, f'{before} && exec "$0" -c "$1"', sys.executable, PROGRAM],
        env=os.environ | {"PYTHONPATH": path, "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    groups, ports = json.loads(done.stdout)
    assert groups == len(ports) == 6
    assert all(FIRST <= port <= LAST for port in ports)
