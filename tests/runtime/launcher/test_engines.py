"""The node's number as engines set it in the environment, or a refusal with the reason."""

import pytest

from recycle_runtime.launcher.engines import EngineError, NodePlace, find_place, first_host

TORCHRUN = {
    "TORCHELASTIC_RUN_ID": "none",
    "TORCHELASTIC_MAX_RESTARTS": "0",
    "TORCHELASTIC_RESTART_COUNT": "0",
    "GROUP_RANK": "1",
    "GROUP_WORLD_SIZE": "4",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "RANK": "1",
    "WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29400",
}
SLURM = {
    "SLURM_JOB_ID": "1234567",
    "SLURM_JOB_NODELIST": "gpu[003-006]",
    "SLURM_NNODES": "4",
    "SLURM_NODEID": "0",
    "SLURM_LOCALID": "0",
    "SLURM_PROCID": "0",
}
POD = {"JOB_COMPLETION_INDEX": "12", "HOSTNAME": "train-12", "RECYCLE_SERVICE": "train"}
PLAIN = {"MASTER_ADDR": "first", "MASTER_PORT": "4000", "NODE_RANK": "3"}


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        # torchrun itself listens at its port.
        (TORCHRUN, NodePlace(1, "10.0.0.1", 29401, 4)),
        (SLURM, NodePlace(0, "gpu003", 24567, 4)),
        (
            SLURM | {"SLURM_STEP_NODELIST": "gpu[004,006]", "SLURM_STEP_NUM_NODES": "2", "SLURM_NODEID": "1"},
            NodePlace(1, "gpu004", 24567, 2),
        ),
        (SLURM | {"MASTER_ADDR": "ib3", "MASTER_PORT": "5"}, NodePlace(0, "ib3", 5, 4)),
        (SLURM | {"MASTER_PORT": "5"}, NodePlace(0, "gpu003", 5, 4)),
        (POD, NodePlace(12, "train-0.train", 29500, None)),
        (
            POD | {"MASTER_ADDR": "train-0.other.default.svc"},
            NodePlace(12, "train-0.other.default.svc", 29500, None),
        ),
        (PLAIN, NodePlace(3, "first", 4000, None)),
        (PLAIN | {"MASTER_ADDR": "fd00::1"}, NodePlace(3, "fd00::1", 4000, None)),
        (PLAIN | {"NNODES": "4", "MASTER_PORT": ""}, NodePlace(3, "first", 29500, 4)),
        (TORCHRUN | SLURM, NodePlace(1, "10.0.0.1", 29401, 4)),
    ],
)
def test_each_engine(environment: dict[str, str], place: NodePlace) -> None:
    assert find_place(environment) == place
    assert place.is_first == (place.node == 0)
    assert find_place(environment, 7).port == 7


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, "nothing says which node this is"),
        ({"MASTER_ADDR": "x"}, "NODE_RANK must be set"),
        (PLAIN | {"NODE_RANK": "-1"}, "NODE_RANK must be a number, got '-1'"),
        (PLAIN | {"NNODES": "3"}, "there is no node 3 among 3: they are counted from 0"),
        (PLAIN | {"MASTER_PORT": "70000"}, "must be from 1 to 65535, got 70000"),
        (POD | {"RECYCLE_SERVICE": ""}, "RECYCLE_SERVICE must name its headless service"),
        (POD | {"HOSTNAME": "else"}, "RECYCLE_SERVICE must name its headless service"),
        (PLAIN | {"MASTER_ADDR": "first:4000"}, "must be a host without a port, got 'first:4000'"),
        (PLAIN | {"MASTER_ADDR": "the first"}, "must be a host without a port, got 'the first'"),
        (PLAIN | {"MASTER_ADDR": " "}, "nothing says which node this is"),
        (TORCHRUN | {"MASTER_ADDR": ""}, "MASTER_ADDR must be set to the host of the first node"),
        (SLURM | {"SLURM_NODEID": ""}, "SLURM_NODEID does not say which node this is"),
        (SLURM | {"SLURM_LOCALID": "1"}, "srun --ntasks-per-node=1"),
        (TORCHRUN | {"LOCAL_WORLD_SIZE": "8"}, "torchrun --nproc-per-node 1"),
    ],
)
def test_what_is_refused(environment: dict[str, str], words: str) -> None:
    with pytest.raises(EngineError, match=words):
        find_place(environment)


@pytest.mark.parametrize(
    ("environment", "launcher"),
    [
        ({"TORCHELASTIC_MAX_RESTARTS": "3"}, ""),
        ({"PET_RDZV_BACKEND": "c10d"}, ""),
        ({"PET_NNODES": "1:4"}, ""),
        ({}, "torchrun --rdzv-backend c10d --nnodes 4"),
        ({}, "torchrun --rdzv_backend=etcd-v2 --nnodes 4"),
        ({}, "torchrun --nnodes=2:4"),
        ({}, "python -m torch.distributed.run --standalone --no-python"),
    ],
)
def test_elastic_torchrun_is_refused_with_the_reason(environment: dict[str, str], launcher: str) -> None:
    with pytest.raises(EngineError, match=r"restarts every node .* --rdzv-backend static"):
        find_place(TORCHRUN | environment, launcher=launcher.split())
    # The options of others than torchrun are not looked at.
    assert find_place(PLAIN | environment, launcher=launcher.split()).node == 3


@pytest.mark.parametrize(
    "launcher", ["torchrun --nnodes 4 --node-rank 1", "torchrun --rdzv-backend=static x.py"]
)
def test_static_torchrun_is_not(launcher: str) -> None:
    assert find_place(TORCHRUN, launcher=launcher.split()).node == 1


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("one", "one"),
        ("b2,a1", "b2"),
        ("gpu[003-007,9],login1", "gpu003"),
        ("n[7,1-3]", "n7"),
        ("rack[1-2]-gpu[04-08].site,x[1,2]", "rack1-gpu04.site"),
        ("a-b[1-2]", "a-b1"),
    ],
)
def test_first_host_of_a_list(names: str, first: str) -> None:
    assert first_host(names) == first
