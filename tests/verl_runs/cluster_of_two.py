"""Two Ray nodes on this machine, as a program: prints the address, and ends them when its standard input ends."""

from __future__ import annotations

import os
import sys
import tempfile

from ray.cluster_utils import Cluster

# Outside of any checkout: what the workers use has to come with the run.
os.chdir(tempfile.gettempdir())
os.environ.pop("PYTHONPATH", None)
cluster = Cluster(
    initialize_head=True,
    head_node_args={"num_cpus": 6, "num_gpus": 0, "include_dashboard": False, "object_store_memory": 150_000_000},
)
cluster.add_node(num_cpus=6, num_gpus=1, object_store_memory=150_000_000)
cluster.wait_for_nodes()
sys.stdout.write(cluster.address + "\n")
sys.stdout.flush()
sys.stdin.read()
cluster.shutdown()
