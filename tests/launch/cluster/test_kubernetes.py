"""What `dtcourse kubernetes` prints: valid by Kubernetes' and Kubeflow's own schemas, and its commands run here.

There is no Kubernetes on this machine. So its part is played, after its documentation: it numbers the Pods of an
Indexed Job, names them, puts values in for $(...), and gives a Pod a name in DNS where a headless Service asks for
it. Kubeflow's part too: the PET_ variables. What runs inside is the manifest's own command.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import os
import re
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from dtcourse.cli import app
from dtcourse.launch.cluster import kubernetes_table, settings
from dtcourse.launch.cluster.kubernetes import manifests
from dtcourse.launch.cluster.kubernetes.training import plan
from dtcourse.launch.cluster.kubernetes.yaml_text import to_yaml
from dtcourse.launch.cluster.kubernetes_table import Kubernetes
from dtcourse.launch.cluster.settings import Settings
from tests.turns import takes_turns

ROOT = Path(__file__).resolve().parents[3]
BIN = Path(sys.executable).parent
IMAGE = "registry.example:5000/course/train:1.2"
NEWEST = "1.37"
# The oldest in which a Job's podFailurePolicy is stable.
OLDEST = "1.31"

TABLE = Kubernetes(
    namespace="ml-course", queue="students", shared_memory=0.5, user=1001, pull_secrets=["registry"],
    claims={"/data": "course-data:ro", "/checkpoints": "kept", "/old": "kept:ro"}, node_selector={"pool": "gpu"},
    tolerations=["nvidia.com/gpu", "a/b=c:NoExecute"], priority="teaching", ttl_minutes=7.5,
)  # fmt: skip
GPUS = Settings(
    gpus_per_node=8, cpus_per_rank=12, memory_per_node=64, minutes=90, wait_minutes=30, interface="eth0",
    kubernetes=TABLE
)  # fmt: skip


def planned(ranks=4, nodes=2, base=None, **changes):
    changes = {"image": IMAGE, "name": "step", **changes}
    return plan(base or Settings(), changes.pop("target", "train.py:step"), ranks, nodes=nodes, **changes)  # fmt: skip


def container_of(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return container


# --- by the schemas --------------------------------------------------------------------------------------------------


def reject(manifest, version=NEWEST):
    """What Kubernetes' schema has against it, or None."""
    import kubernetes_validate

    try:
        kubernetes_validate.validate(manifest, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return error.message


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
@pytest.mark.parametrize("base", [Settings(), GPUS], ids=["defaults", "all settings"])
def test_job_and_service_are_valid(base, version):
    training = planned(16, base=base, arguments=["--rate", "1e-3"], backend="gloo")
    for manifest in (manifests.service(training), manifests.job(training)):
        assert reject(manifest, version) is None


def with_one_more_key(manifest, *path):
    changed = copy.deepcopy(manifest)
    place = changed
    for step in path:
        place = place[step]
    place["imagePullSecret"] = "mine"
    return changed


POD = ("spec", "template", "spec")


@pytest.mark.parametrize(
    "path",
    [(), ("spec",), POD, (*POD, "containers", 0), (*POD, "volumes", 0, "emptyDir"),
     ("spec", "podFailurePolicy", "rules", 0)],
)  # fmt: skip
def test_a_key_that_kubernetes_does_not_know_would_be_noticed(path):
    said = reject(with_one_more_key(manifests.job(planned()), *path))
    assert "imagePullSecret" in said


def test_a_number_where_kubernetes_wants_text_would_be_noticed():
    job = manifests.job(planned())
    container_of(job)["command"][2] = 2
    assert "2 is not of type" in reject(job)


def dropped(train_job):
    """What Kubeflow's own models do not keep of it: they take any key and lose those that they do not know."""
    from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob as TrainJob

    kept = TrainJob.from_dict(copy.deepcopy(train_job)).to_dict()
    return difference(train_job, kept)


def difference(ours, theirs, path=""):
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return [
            place
            for key in ours.keys() | theirs.keys()
            for place in (
                difference(ours[key], theirs[key], f"{path}/{key}")
                if key in ours and key in theirs
                else [f"{path}/{key}"]
            )
        ]
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return [place for i, (a, b) in pairs for place in difference(a, b, f"{path}/{i}")]
    return [] if ours == theirs else [path]


@pytest.mark.parametrize("base", [Settings(), GPUS], ids=["defaults", "all settings"])
def test_the_trainjob_is_all_known_to_kubeflow(base):
    training = planned(16, base=base, arguments=["--rate", "1e-3"], backend="gloo")
    assert dropped(manifests.train_job(training)) == []


@pytest.mark.parametrize(
    ("path", "place"),
    [((), "/imagePullSecret"), (("spec",), "/spec/imagePullSecret"),
     (("spec", "trainer"), "/spec/trainer/imagePullSecret"),
     (("spec", "trainer", "resourcesPerNode"), "/spec/trainer/resourcesPerNode/imagePullSecret"),
     (("spec", "trainer", "env", 0), "/spec/trainer/env/0/imagePullSecret")],
)  # fmt: skip
def test_a_key_that_kubeflow_does_not_know_would_be_noticed(path, place):
    assert dropped(with_one_more_key(manifests.train_job(planned()), *path)) == [place]


def test_kubeflow_refuses_a_text_where_it_wants_a_number():
    job = manifests.train_job(planned())
    job["spec"]["trainer"]["numNodes"] = "2"
    with pytest.raises(ValueError, match="numNodes"):
        dropped(job)


# --- what a schema cannot see ----------------------------------------------------------------------------------------


def test_the_parts_of_a_job_name_each_other():
    training = planned(8, 4, name="train", base=GPUS)
    service, job = manifests.service(training), manifests.job(training)
    pod = job["spec"]["template"]["spec"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert (
        service["spec"]["selector"].items() <= job["spec"]["template"]["metadata"]["labels"].items()
    )
    assert service["metadata"]["namespace"] == job["metadata"]["namespace"] == "ml-course"
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 4, "all Pods at once"
    mounts = {mount["name"] for mount in container_of(job)["volumeMounts"]}
    assert mounts == {volume["name"] for volume in pod["volumes"]}
    assert pod["restartPolicy"] == "Never", "podFailurePolicy allows no other"
    # Kueue's label belongs to what it starts, and is no label of the Service.
    queue = {"kueue.x-k8s.io/queue-name": "students"}
    assert job["metadata"]["labels"] == queue and "labels" not in service["metadata"]
    assert manifests.train_job(training)["metadata"]["labels"] == queue


def test_a_node_asks_for_what_cluster_toml_says():
    training = planned(16, base=GPUS)
    wanted = {"cpu": "96", "memory": "65536Mi", "nvidia.com/gpu": "8"}
    job, train_job = manifests.job(training), manifests.train_job(training)
    for resources in (container_of(job)["resources"], train_job["spec"]["trainer"]["resourcesPerNode"]):  # fmt: skip
        assert resources == {"requests": wanted, "limits": wanted}
    volume = job["spec"]["template"]["spec"]["volumes"][0]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "512Mi"}
    # torchrun alone would wait ten minutes for the other Pods.
    for words in (container_of(job)["command"], train_job["spec"]["trainer"]["command"]):
        assert "--rdzv-conf timeout=5400" in " ".join(words)
    for variables in (container_of(job)["env"], train_job["spec"]["trainer"]["env"]):
        values = {variable["name"]: variable["value"] for variable in variables}
        assert values["GLOO_SOCKET_IFNAME"] == values["NCCL_SOCKET_IFNAME"] == "eth0"
        assert values["OMP_NUM_THREADS"] == "12"


def test_without_settings_a_node_asks_for_its_cpus_alone_and_its_ranks_use_them():
    container = container_of(manifests.job(planned(6, 2)))
    assert container["resources"] == {"requests": {"cpu": "3"}, "limits": {"cpu": "3"}}
    assert "--device cpu" in " ".join(container["command"])
    assert "--device" not in container_of(manifests.job(planned(16, base=GPUS)))["command"]


def test_three_clocks():
    job, train_job = manifests.job(planned(base=GPUS)), manifests.train_job(planned(base=GPUS))
    assert job["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 90 * 60, (
        "without the wait for a machine"
    )
    assert (
        job["spec"]["activeDeadlineSeconds"]
        == train_job["spec"]["activeDeadlineSeconds"]
        == 120 * 60
    )
    assert job["spec"]["ttlSecondsAfterFinished"] == 450
    patient = manifests.job(planned(base=Settings(kubernetes=Kubernetes(ttl_minutes=None))))["spec"]
    assert patient.keys().isdisjoint({"activeDeadlineSeconds", "ttlSecondsAfterFinished"}), (
        "nobody set a limit"
    )
    assert patient["template"]["spec"]["activeDeadlineSeconds"] == 30 * 60
    assert manifests.train_job(planned())["spec"]["activeDeadlineSeconds"] == 30 * 60


def patched(train_job):
    """What a TrainJob changes of its runtime's Pods."""
    (patch,) = train_job["spec"]["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    assert node["name"] == "node", "as Kubeflow calls the Job that trains"
    return node["template"]["spec"]["template"]["spec"]


def test_claims_are_mounted_where_the_settings_say():
    pod = manifests.job(planned(base=GPUS))["spec"]["template"]["spec"]
    theirs = patched(manifests.train_job(planned(base=GPUS)))
    assert pod["containers"][0]["volumeMounts"][1:] == theirs["containers"][0]["volumeMounts"]
    for volumes, mounts in (
        (pod["volumes"][1:], pod["containers"][0]["volumeMounts"][1:]),
        (theirs["volumes"], theirs["containers"][0]["volumeMounts"]),
    ):
        claims = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in volumes}
        seen = {
            each["mountPath"]: (claims[each["name"]], each.get("readOnly", False))
            for each in mounts
        }
        assert seen == {
            "/data": ("course-data", True),
            "/checkpoints": ("kept", False),
            "/old": ("kept", True),
        }
        assert len(claims) == 2, "a Pod names a claim once"
    assert theirs["containers"][0]["name"] == "node"
    for part in (pod["securityContext"], theirs["securityContext"]):
        assert (part["runAsUser"], part["fsGroup"]) == (1001, 1001)


def test_on_which_machines_and_by_whose_leave():
    pod = manifests.job(planned(base=GPUS))["spec"]["template"]["spec"]
    for part in (pod, patched(manifests.train_job(planned(base=GPUS)))):
        assert part["nodeSelector"] == {"pool": "gpu"}
        assert part["imagePullSecrets"] == [{"name": "registry"}]
        assert part["tolerations"] == [
            {"key": "nvidia.com/gpu", "operator": "Exists"},
            {"key": "a/b", "operator": "Equal", "value": "c", "effect": "NoExecute"},
        ]
    assert pod["priorityClassName"] == "teaching"


def test_without_such_settings_nothing_of_the_kind_is_said():
    job, train_job = manifests.job(planned()), manifests.train_job(planned())
    pod = job["spec"]["template"]["spec"]
    assert len(pod["volumes"]) == 1 and "runtimePatches" not in train_job["spec"]
    assert pod["securityContext"].keys() == {"runAsNonRoot", "seccompProfile"}
    assert pod.keys().isdisjoint(
        {"nodeSelector", "tolerations", "imagePullSecrets", "priorityClassName"}
    )


def test_a_rank_takes_one_gpu_at_most():
    base = Settings(gpus_per_node=4)
    asked = [
        container_of(manifests.job(planned(ranks, 1, base=base)))["resources"]["limits"][
            "nvidia.com/gpu"
        ]
        for ranks in (1, 2, 4, 8)
    ]
    assert asked == ["1", "2", "4", "4"]


def test_another_makers_gpus():
    table = Kubernetes(gpu="amd.com/gpu")
    base = Settings(gpus_per_node=4, kubernetes=table)
    limits = container_of(manifests.job(planned(8, base=base)))["resources"]["limits"]
    assert limits == {"cpu": "4", "amd.com/gpu": "4"}


def test_ranks_per_node_decides_how_many_pods():
    training = planned(8, 1, base=Settings(ranks_per_node=2))
    assert (training.nodes, training.ranks_per_node) == (4, 2)
    assert manifests.train_job(training)["spec"]["trainer"]["numProcPerNode"] == 2


def test_kubeflows_reserved_variables_are_left_to_it():
    variables = manifests.train_job(planned(base=GPUS))["spec"]["trainer"]["env"]
    assert not [each for each in variables if each["name"].startswith("PET_")]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ranks": 3}, "3 ranks cannot be laid out as 2 nodes of equal size"),
        ({"ranks": 0}, "world_size is the number of ranks"),
        ({"nodes": True}, "nodes is the number of nodes"),
        ({"target": "train.py"}, "reads file.py:function; got 'train.py'"),
        ({"target": "train.sh:step"}, "reads file.py:function"),
        ({"target": "train.py:a b"}, "reads file.py:function"),
        ({"target": "--help.py:step"}, "reads file.py:function"),
        ({"arguments": ["rate", "3"]}, "'rate': arguments of the function read --name value"),
        ({"arguments": ["--rate"]}, "--rate has no value"),
        ({"arguments": ["--text", "two\nlines"]}, "is no printable text"),
        ({"image": None}, "no image was named: give --image"),
        ({"image": "has a space"}, "image is a container image"),
        ({"image": "Upper/case"}, "image is a container image"),
        ({"image": "train:"}, "image is a container image"),
        ({"name": "Step"}, "name is lower-case letters, digits and dashes, a letter first"),
        ({"name": "1st"}, "a letter first.*got '1st'"),
        ({"name": "under_score"}, "name is lower-case letters"),
        ({"name": "dash-"}, "no dash last"),
        ({"name": ""}, "name is lower-case letters"),
        ({"target": "train.py:_", "name": None}, "name is lower-case letters"),
        ({"namespace": "My.Space"}, "namespace is lower-case letters"),
        ({"backend": "pigeon"}, "there is no backend 'pigeon'"),
        ({"base": Settings(memory_per_node=2)}, "2 GB of shared memory leave a node with 2 GB nothing"),
        ({"base": Settings(ranks_per_node=1)}, "allows 1"),
        ({"base": Settings(kubernetes=Kubernetes(gpu="gpu"))}, "gpu in .kubernetes. is a resource such as"),
    ],
)  # fmt: skip
def test_what_kubernetes_would_refuse_is_refused_here(changes, says):
    with pytest.raises(ValueError, match=says):
        planned(**changes)


@pytest.mark.parametrize(
    "image",
    [
        "dtcourse",
        "course:latest",
        "localhost/course:1",
        "h.example/a/b_c.d--e:V1.2-x",
        IMAGE,
        f"me/a@sha256:{'0f' * 32}",
    ],
)  # fmt: skip
def test_images_as_podman_writes_them(image):
    assert planned(image=image).image == image


def test_each_run_has_a_name_of_its_own(monkeypatch):
    def name(user, target="/code/my train.py:Train_all_2"):
        monkeypatch.setattr("getpass.getuser", user)
        training = planned(1000, 1000, target=target, name=None)
        manifests.job(training), manifests.train_job(training)  # the thousandth Pod has a name too
        return training.name

    names = [name(lambda: "Ana.B") for _ in range(50)]
    assert all(re.fullmatch("train-all-2-ana-b-[0-9a-f]{4}", each) for each in names)
    assert len(set(names)) > 40
    assert re.fullmatch("a{26}-b{16}-[0-9a-f]{4}", name(lambda: "b" * 99, f"a.py:{'a' * 99}"))

    def nobody():
        raise KeyError("getpwuid(): uid not found: 1234")

    assert re.fullmatch("step-[0-9a-f]{4}", name(nobody, "a.py:step"))


def test_the_last_pod_still_has_a_name():
    # DNS allows 63 letters: 61 and the "-9" of the tenth Pod, or 54 and its "-node-0-9".
    for make, most, host in ((manifests.job, 61, "a*-9"), (manifests.train_job, 54, "a*-node-0-9")):  # fmt: skip
        make(planned(10, 10, name="a" * most))
        with pytest.raises(ValueError, match=f"the last Pod would be called {host}, which is 64"):
            make(planned(10, 10, name="a" * (most + 1)))


# --- YAML ------------------------------------------------------------------------------------------------------------

# Text for us, and something else for some reader of YAML: Go's, for one, which is Kubernetes' own.
MISLEADING = [
    "1e-3",
    "0o17",
    "0x1f",
    "1_000",
    "12:30:00",
    ".inf",
    "-1",
    "yes",
    "No",
    "on",
    "null",
    "~",
    "true",
    "TRUE",
    "2026-01-01",
    "a: b",
    "- a",
    "# a",
    "*a",
    "&a",
    "!a",
    "%a",
    "@a",
    "`a",
    "'a'",
    '"a"',
    "",
    " a ",
    "[1]",
    "{a}",
    "é",
]


def test_yaml_says_the_same_as_the_manifests():
    words = [word for i, text in enumerate(MISLEADING) for word in (f"--text_{i}", text)]
    training = planned(8, base=GPUS, arguments=words)
    made = [manifests.service(training), manifests.job(training), manifests.train_job(training)]
    assert list(yaml.safe_load_all(to_yaml(made))) == made


def test_text_stands_between_quotation_marks_unless_it_can_be_nothing_else():
    written = to_yaml([{"texts": [*MISLEADING, "torchrun", "trainer.kubeflow.org/v1alpha1"]}])
    tokens = [token for token in yaml.scan(written) if isinstance(token, yaml.ScalarToken)]
    assert [token.value for token in tokens if token.plain] == [
        "texts", "torchrun", "trainer.kubeflow.org/v1alpha1"
    ]  # fmt: skip


# --- cluster.toml ----------------------------------------------------------------------------------------------------


def read(folder, text):
    path = folder / "cluster.toml"
    path.write_text(text)
    return settings.read(path)


def test_the_table_of_cluster_toml(tmp_path):
    found = read(
        tmp_path, 'cpus_per_rank = 2\n[kubernetes]\nnamespace = "ml"\nimage = "course:1"\nshared_memory = 1.5\n'
    )  # fmt: skip
    assert found.kubernetes == Kubernetes(namespace="ml", image="course:1", shared_memory=1.5)
    job = manifests.job(planned(4, base=found, image=None))
    assert container_of(job)["image"] == "course:1" and job["metadata"]["namespace"] == "ml"
    assert container_of(job)["resources"]["limits"] == {"cpu": "4"}
    asked = manifests.job(planned(4, base=found, namespace="mine"))
    assert container_of(asked)["image"] == IMAGE and asked["metadata"]["namespace"] == "mine"
    assert read(tmp_path, "").kubernetes == Kubernetes()


def test_the_example_names_every_setting_of_the_table():
    commented = settings.EXAMPLE.partition("# [kubernetes]")[2]
    uncommented = "\n".join(line.removeprefix("# ") for line in commented.splitlines()[1:])
    import tomllib

    example = tomllib.loads(uncommented)
    assert list(example) == [field.name for field in dataclasses.fields(Kubernetes)]
    kubernetes_table.check(Kubernetes(**example), "the example")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("kubernetes = 3", r"kubernetes is a table, \[kubernetes\]; got 3"),
        ("[kubernetes]\nnamspace = 'a'", r"no setting 'namspace' in \[kubernetes\]; known are namespace, image"),
        ("[kubernetes]\nnamespace = 'A'", r"namespace in \[kubernetes\] is lower-case letters"),
        ("[kubernetes]\nqueue = 7", r"queue in \[kubernetes\] is lower-case letters"),
        ("[kubernetes]\nimage = ' '", r"image in \[kubernetes\] is a container image"),
        ("[kubernetes]\nruntime = 'a..b'", r"runtime in \[kubernetes\] is one or more parts between dots"),
        ("[kubernetes]\ngpu = 'nvidia.com/'", r"gpu in \[kubernetes\] is a resource such as"),
        ("[kubernetes]\nshared_memory = 0", r"shared_memory in \[kubernetes\] is a number of GB"),
        ("[kubernetes]\nshared_memory = true", r"shared_memory in \[kubernetes\] is a number of GB"),
        ("[kubernetes]\nshared_memory = nan", r"shared_memory in \[kubernetes\] is a number of GB"),
        ("[kubernetes]\nuser = 0", r"user in \[kubernetes\] is a user's number above 0"),
        ("[kubernetes]\nuser = true", r"user in \[kubernetes\] is a user's number"),
        ("[kubernetes]\npull_secrets = 'a'", r"pull_secrets in \[kubernetes\] is a list of Secrets"),
        ("[kubernetes]\nclaims = ['data']", r"claims in \[kubernetes\] is a table such as"),
        ("[kubernetes.claims]\ndata = 'a'", r"claims in \[kubernetes\] is a table such as"),
        ("[kubernetes.claims]\n'/' = 'a'", r"claims in \[kubernetes\] is a table such as"),
        ("[kubernetes.claims]\n'/a/../b' = 'a'", r"claims in \[kubernetes\] is a table such as"),
        ("[kubernetes.claims]\n'/dev/shm' = 'a'", r"claims in \[kubernetes\] is a table such as"),
        ("[kubernetes.claims]\n'/a' = 'a'\n'/a/b' = 'b'", r"claims in \[kubernetes\] is a table such as"),
        ("[kubernetes.claims]\n'/a' = 'a'\n'/a/' = 'b'", r"claims in \[kubernetes\] is a table such as"),
        ("[kubernetes.claims]\n'/a' = 'A:rw'", r"claims in \[kubernetes\] is a table such as"),
        ("[kubernetes.claims]\n'/a' = 3", r"claims in \[kubernetes\] is a table such as"),
        ("[kubernetes.node_selector]\npool = 3", r"node_selector in \[kubernetes\] is a table of labels"),
        ("[kubernetes]\ntolerations = ['a:Never']", r"tolerations in \[kubernetes\] is a list of taints"),
        ("[kubernetes]\ntolerations = ['=b']", r"tolerations in \[kubernetes\] is a list of taints"),
        ("[kubernetes]\npriority = 'High'", r"priority in \[kubernetes\] is one or more parts"),
        ("[kubernetes]\nttl_minutes = -1", r"ttl_minutes in \[kubernetes\] is a number of minutes"),
    ],
)  # fmt: skip
def test_mistakes_in_the_table_are_named(tmp_path, text, says):
    with pytest.raises(ValueError, match=says) as error:
        read(tmp_path, text)
    assert str(tmp_path / "cluster.toml") in str(error.value)


# --- the command -----------------------------------------------------------------------------------------------------


def command(*words, code=0):
    result = CliRunner().invoke(app, ["kubernetes", *words])
    assert result.exit_code == code, result.output
    return result.stdout


def test_the_command_prints_the_manifests(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(settings.VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ("train.py:step", "--ranks", "8", "--nodes", "2", "--image", IMAGE, "--name", "step")
    training = planned(8, arguments=["--rate", "1e-3"])
    printed = command(*words, "--", "--rate", "1e-3")
    assert list(yaml.safe_load_all(printed)) == [
        manifests.service(training), manifests.job(training)
    ]  # fmt: skip
    printed = command(*words, "--trainjob", "--", "--rate", "1e-3")
    assert yaml.safe_load(printed) == manifests.train_job(training)
    (tmp_path / "cluster.toml").write_text('[kubernetes]\nimage = "course:1"\n')
    assert yaml.safe_load(command("train.py:step", "--trainjob"))["spec"]["trainer"]["image"] == "course:1"  # fmt: skip
    # As with `dtcourse submit`, two dashes before the function's arguments may be left out.
    assert command(*words, "--rate", "1e-3") == command(*words, "--", "--rate", "1e-3")
    command("train.py:step", "--ranks", "3", "--nodes", "2", code=2)
    command("train.py:step", "--cluster", "nowhere.toml", code=2)


# --- the manifests' own commands, run here -----------------------------------------------------------------------

# What a shell has in which pytest was started, and nothing that would make a process a rank of something else.
RANK_NAMES = re.compile(r"^(RANK|WORLD_SIZE|LOCAL_|GROUP_|MASTER_|SLURM_|OMPI_|TORCHELASTIC_|PET_)")
CLEAN = {name: value for name, value in os.environ.items() if not RANK_NAMES.match(name)}
CLEAN |= {"PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}

TRAIN = """
    import os
    import socket
    import torch
    import torch.distributed as dist

    def step(rate, text):
        total = torch.tensor([rate * 10 ** dist.get_rank()])
        dist.all_reduce(total)
        env = os.environ
        place = env["GROUP_RANK"], env["LOCAL_RANK"]
        about = (*place, socket.gethostname(), env["OMP_NUM_THREADS"])
        everyone = [None] * dist.get_world_size()
        dist.all_gather_object(everyone, (total.item(), text, torch.get_num_threads(), *about))
        return everyone

    def fail():
        if dist.get_rank() == 1:
            raise RuntimeError("on purpose")
        dist.barrier()
"""
# Kubernetes would put an address in for the first word, torchrun a number for the second.
TEXT = "$(MASTER_ADDR) ${local_rank} $HOME $$"
ARGUMENTS = ["--rate", "0.5e0", "--text", TEXT]


@pytest.fixture(autouse=True)
def train(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(textwrap.dedent(TRAIN))
    monkeypatch.chdir(tmp_path)


def expand(text, values):
    """$(NAME) is its value, where there is one, and $$ is $: what Kubernetes does to commands and variables."""

    def replace(match):
        return "$" if match[0] == "$$" else values.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([-._A-Za-z0-9]+)\)", replace, text)


def pods_of(job):
    """[(host name, environment, command)] of an Indexed Job: what its controller and the kubelet would make of it."""
    assert job["spec"]["completionMode"] == "Indexed"
    pods = []
    for index in range(job["spec"]["completions"]):
        container, values = container_of(job), {}
        for variable in container["env"]:
            values[variable["name"]] = expand(variable["value"], values)
        values["JOB_COMPLETION_INDEX"] = str(index)  # which the controller puts last
        pods.append(
            (
                f"{job['metadata']['name']}-{index}",
                values,
                [expand(word, values) for word in container["command"]],
            )
        )
    return pods


def pods_of_kubeflow(job):
    """The same of a TrainJob: its torch plugin makes these variables, and its JobSet these names."""
    trainer, name = job["spec"]["trainer"], job["metadata"]["name"]
    pods = []
    for index in range(trainer["numNodes"]):
        values = {variable["name"]: variable["value"] for variable in trainer["env"]}
        values |= {
            "PET_NNODES": str(trainer["numNodes"]),
            "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
            "PET_NODE_RANK": str(index),
            "PET_MASTER_ADDR": f"{name}-node-0-0.{name}",
            "PET_MASTER_PORT": "29500",
        }
        pods.append(
            (
                f"{name}-node-0-{index}",
                values,
                [expand(word, values) for word in trainer["command"]],
            )
        )
    return pods


def on_this_machine(pods, look_up=False):
    """All Pods here have one set of ports, so it is another port than theirs; and no names, unless they `look_up`."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        changed = {str(manifests.PORT): str(door.getsockname()[1])}
    if not look_up:
        addresses = {v.get("MASTER_ADDR", v.get("PET_MASTER_ADDR")) for _, v, _ in pods}
        assert len(addresses) == 1, "all Pods look for the same one"
        changed[addresses.pop()] = "127.0.0.1"
    return [
        (
            host,
            {name: changed.get(value, value) for name, value in values.items()},
            [changed.get(word, word) for word in words],
        )
        for host, values, words in pods
    ]


def start(words, values):
    return subprocess.Popen(
        words, env=CLEAN | values, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def ends_of(running, limit=120):
    """[(exit code, standard output, standard error)]; none is left running."""
    try:
        return [(pod.wait(limit), *pod.communicate()) for pod in running]
    finally:
        for pod in running:
            pod.kill()
            pod.wait()


def check_sums(ends, nodes, per_node, hosts=None):
    """All ranks have the sum over all ranks; each is where it should be."""
    assert [code for code, *_ in ends] == [0] * nodes, ends
    world = nodes * per_node
    # torchrun's own words may come first, on the same line or another.
    found = ast.literal_eval(ends[0][1].strip().splitlines()[-1])
    assert [end[1] for end in ends[1:]] == [""] * (nodes - 1), "rank 0 prints, and it is on node 0"
    sum_of_all = 0.5 * sum(10**rank for rank in range(world))
    assert [each[:3] for each in found] == [(sum_of_all, TEXT, 1)] * world
    places = [(str(rank // per_node), str(rank % per_node)) for rank in range(world)]
    assert [each[3:5] for each in found] == places
    if hosts:
        assert [each[5] for each in found] == [hosts[rank // per_node] for rank in range(world)]


@pytest.mark.slow
def test_the_jobs_command_with_the_environment_of_kubernetes():
    pods = on_this_machine(pods_of(manifests.job(planned(3, 3, arguments=ARGUMENTS))))
    assert [values["JOB_COMPLETION_INDEX"] for _, values, _ in pods] == ["0", "1", "2"]
    check_sums(ends_of([start(words, values) for _, values, words in pods]), nodes=3, per_node=1)


@pytest.mark.slow
@takes_turns("dtcourse/launch/cluster/")
def test_the_trainjobs_command_with_the_environment_of_kubeflow():
    pods = on_this_machine(pods_of_kubeflow(manifests.train_job(planned(4, 2, arguments=ARGUMENTS))))  # fmt: skip
    check_sums(ends_of([start(words, values) for _, values, words in pods]), nodes=2, per_node=2)


@pytest.mark.slow
@takes_turns("dtcourse/launch/cluster/")
def test_when_a_rank_fails_every_pod_does():
    pods = on_this_machine(pods_of(manifests.job(planned(2, 2, target="train.py:fail"))))
    ends = ends_of([start(words, values) for _, values, words in pods])
    assert "RuntimeError: on purpose" in ends[1][2]
    (rule,) = [
        rule["onExitCodes"]
        for rule in manifests.job(planned())["spec"]["podFailurePolicy"]["rules"]
        if "onExitCodes" in rule
    ]
    assert rule["operator"] == "NotIn"
    assert not {code for code, *_ in ends} & set(rule["values"]), "so the Job fails"


# A user, a host name, processes and shared memory of its own. The network is the machine's.
IN_A_POD = ["bwrap", "--die-with-parent", "--dev-bind", "/", "/", "--unshare-user", "--uid", "1000", "--gid", "1000",
            "--unshare-pid", "--proc", "/proc", "--unshare-uts"]  # fmt: skip


def in_a_pod(job, host, hosts, words):
    """The words as they run in a Pod of that name, with its user, its /dev/shm and what it finds in DNS."""
    volume, mount = (
        job["spec"]["template"]["spec"]["volumes"][0],
        container_of(job)["volumeMounts"][0],
    )
    size = int(volume["emptyDir"]["sizeLimit"].removesuffix("Mi")) << 20
    assert job["spec"]["template"]["spec"]["securityContext"]["runAsNonRoot"]
    return [
        *(*IN_A_POD, "--hostname", host, "--ro-bind", str(hosts), "/etc/hosts"),
        *("--size", str(size), "--tmpfs", mount["mountPath"], *words),
    ]


def names_in_dns(service, job):
    """The Pods' names: where the Pods' subdomain is a headless Service that selects them."""
    labels = job["spec"]["template"]["metadata"]["labels"]
    headless = service["spec"]["clusterIP"] == "None"
    if not headless or not service["spec"]["selector"].items() <= labels.items():
        return []
    subdomain = job["spec"]["template"]["spec"]["subdomain"]
    if subdomain != service["metadata"]["name"]:
        return []
    return [f"{host}.{subdomain}" for host, *_ in pods_of(job)]


@pytest.mark.slow
@pytest.mark.needs("bubblewrap")
@takes_turns("dtcourse/launch/cluster/")
def test_pods_find_each_other_by_name_although_pod_0_comes_last(tmp_path):
    training = planned(4, 2, name="train", arguments=ARGUMENTS)
    service, job = manifests.service(training), manifests.job(training)
    pods = pods_of(job)
    running, files = [], {}
    for host, values, words in reversed(on_this_machine(pods, look_up=True)):
        files[host] = tmp_path / f"hosts of {host}"
        files[host].write_text(f"127.0.0.1 localhost {host}\n")  # what a kubelet writes
        if host == "train-0":  # now it starts, and DNS learns of it
            time.sleep(1.5)
            for file in files.values():
                with file.open("a") as known:
                    known.writelines(f"127.0.0.1 {name}\n" for name in names_in_dns(service, job))
        running.append(start(in_a_pod(job, host, files[host], words), values))
    check_sums(ends_of(running[::-1]), nodes=2, per_node=2, hosts=["train-0", "train-1"])


def test_a_service_that_does_not_fit_its_job_gives_no_names():
    training = planned()
    service, job = manifests.service(training), manifests.job(training)
    assert names_in_dns(service, job) == ["step-0.dtcourse", "step-1.dtcourse"]
    assert {v["MASTER_ADDR"] for _, v, _ in pods_of(job)} == {"step-0.dtcourse"}
    assert service == manifests.service(planned(name="other")), "one for all runs"
    for path, value in (
        ("metadata", {"name": "other"}),
        ("spec", {"clusterIP": "None", "selector": {"a": "b"}}),
    ):
        assert names_in_dns(service | {path: value}, job) == []


def test_dollars_as_kubernetes_reads_them():
    values = {"A": "1"}
    assert expand("$(A) $$(A) $(B) $A $$ $$$(A)", values) == "1 $(A) $(B) $A $ $1"


# --- docs/kubernetes.md ------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "kubernetes.md").read_text()
SHOWN = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```", PAGE, re.M | re.S)
    for line in block.splitlines()
]


def test_the_pages_commands_are_right(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(settings.VARIABLE, raising=False)
    ours = [line.split("|")[0].split()[2:] for line in SHOWN if line.startswith("dtcourse kubernetes ")]  # fmt: skip
    made = [list(yaml.safe_load_all(command(*words))) for words in ours]
    (service, job), (train_job,) = made
    assert [each["kind"] for each in (service, job, train_job)] == ["Service", "Job", "TrainJob"]
    assert names_in_dns(service, job) == re.findall(r"`(first-\d\.dtcourse)`", PAGE)
    assert container_of(job)["command"][-3:] == ["train.py:step", "--rate", "1e-3"]
    name = job["metadata"]["name"]
    words = next(each for each in ours if "--name" in each)
    said = CliRunner().invoke(app, ["kubernetes", *words]).stderr.splitlines()
    assert said == [line for line in SHOWN if line.startswith("kubectl ")]
    # Kubernetes itself gives the Pods of a Job this label.
    assert said == [
        f"kubectl logs --follow --prefix --selector batch.kubernetes.io/job-name={name}", f"kubectl delete job {name}"
    ]  # fmt: skip
    (example,) = re.findall(r"^```toml\n(.*?)^```", PAGE, re.M | re.S)
    assert read(tmp_path, example).kubernetes.claims["/data"] == "course-data:ro"
    (build,) = [line for line in SHOWN if line.startswith("podman ")]
    assert build in (ROOT / "containers" / "Containerfile").read_text()


def test_the_page_names_the_settings_and_the_versions_of_the_tests():
    for field in (
        "minutes",
        "wait_minutes",
        "ranks_per_node",
        "cpus_per_rank",
        "memory_per_node",
        "gpus_per_node",
        "interface",
    ):
        assert f"`{field}`" in PAGE and f"{field} = " in settings.EXAMPLE
    for field in dataclasses.fields(Kubernetes):
        assert (
            f"`{field.name}`" in PAGE
            or f"{field.name} = " in PAGE
            or field.name in ("namespace", "image", "gpu", "shared_memory", "queue", "runtime")
        ), field.name
    assert f"of {OLDEST} and of {NEWEST}" in PAGE
    from importlib.metadata import version

    for package, shown in (("kubernetes-validate", NEWEST), ("kubeflow-trainer-api", "2.3")):
        assert version(package).startswith(f"{shown}.")
    assert "(2.3)" in PAGE
