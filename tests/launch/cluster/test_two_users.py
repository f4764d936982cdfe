"""What one user of a cluster can do to another: two accounts of this machine, on a Slurm that root started."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from dtcourse.launch.cluster import slurm
from tests.launch.cluster.users import ANA, EVE, two_users

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.slow,
    pytest.mark.needs("users"),
    pytest.mark.stands_on("dtcourse/launch/", share=(1, 1)),
]


def until(condition):
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.05)


LAUNCH = """
import os, sys
from dtcourse import launch

def step():
    return os.getuid(), os.environ["SLURMD_NODENAME"]

if __name__ == "__main__":
    try:
        print("returned", list(launch(step, 2, nodes=2, cluster="cluster.toml")))
    except (ValueError, RuntimeError) as error:
        print(type(error).__name__, error)
"""


@pytest.fixture(scope="module")
def users():
    with two_users() as both:
        yield both


def test_each_user_s_job_runs_as_them(users):
    import pwd

    for user in (ANA, EVE):
        users.write(user, 'folder = "~/.dtcourse/jobs"\n', "cluster.toml")
        code, said = users.python(user, LAUNCH)
        number = pwd.getpwnam(user).pw_uid
        assert code == 0 and f"returned [({number}, 'n1'), ({number}, 'n2')]" in said, said


# What eve puts where ana's job is: a pickle that says who ran it.
EVIL = """
import os, pickle, struct, sys
from pathlib import Path

class Evil:
    def __reduce__(self):
        return os.system, ("id -u >> MARK",)

(mine,) = [folder for folder in Path("OPEN").iterdir() if "mine" not in folder.name]
mine.rename(mine.with_name("mine-" + mine.name))
mine.mkdir()
mine.chmod(0o777)
stream = pickle.dumps(Evil())
(mine / "node-0.log").write_bytes(struct.pack("!Q", len(stream)) + stream)
for number in range(1, 100):
    (mine / f"{number}_submitted.pkl").write_bytes(stream)
"""


@pytest.fixture
def open_folder(users):
    """A folder for ana's jobs, beside which everybody may write where they please, and eve's program for it."""
    folder = Path(tempfile.mkdtemp(prefix="open-", dir=users.folder))
    folder.chmod(0o755)
    shutil.chown(folder, ANA)
    mark = users.folder / f"mark-{folder.name}"
    mark.touch()
    mark.chmod(0o666)
    users.write(ANA, f'folder = "{folder}"\n', "cluster.toml")
    users.write(EVE, EVIL.replace("MARK", str(mark)).replace("OPEN", str(folder)), "evil.py")
    return folder, mark


def test_a_folder_that_others_may_write_is_refused_before_anything_is_submitted(users, open_folder):
    folder, _ = open_folder
    for mode, words in (
        (0o777, f"{folder} may be written by others (mode 0777)"),
        (0o1777, "returned [(1, "),
    ):
        folder.chmod(mode)
        code, said = users.python(ANA, LAUNCH)
        assert code == 0 and words in said, said
    folder.chmod(0o777)
    code, said = users.run(
        ANA, sys.executable, "-m", "dtcourse.cli", "doctor", "--cluster", "cluster.toml"
    )
    assert code == 1 and "may be written by others" in " ".join(said.split()), said


def test_a_folder_above_that_is_another_user_s_is_refused(users, open_folder):
    folder, _ = open_folder
    shutil.chown(folder, EVE)
    (folder / "ana").mkdir()
    shutil.chown(folder / "ana", ANA)
    users.write(ANA, f'folder = "{folder}/ana"\n', "cluster.toml")
    code, said = users.python(ANA, LAUNCH)
    assert code == 0 and f"{folder} belongs to user {EVE}, so somebody else could put" in said, said


def test_a_job_s_folder_that_is_exchanged_while_it_waits_runs_nothing_of_another_user_s(
    users, open_folder
):
    folder, mark = open_folder
    users.write(ANA, f'folder = "{folder}"\n[options]\nhold = true\n', "cluster.toml")
    users.write(ANA, "def step():\n    print('it ran')\n", "train.py")
    dtcourse = [sys.executable, "-m", "dtcourse.cli"]
    code, said = users.run(
        ANA, *dtcourse, "submit", "train.py:step", "--ranks", "1", "--cluster", "cluster.toml"
    )
    assert code == 0, said
    number = said.split()[1].rstrip(":")
    folder.chmod(0o777)
    code, said = users.python(EVE, (users.home(EVE) / "evil.py").read_text())
    assert code == 0, said
    subprocess.run(["scontrol", "release", number], check=True)
    until(lambda: slurm.details("job", number).get("JobState") in slurm.OVER)
    assert mark.read_text() == ""
    (theirs,) = [path for path in folder.iterdir() if "mine" not in path.name]
    assert "belongs to user games with mode 0777" in (theirs / f"{number}_0_log.err").read_text()


def test_a_job_s_folder_that_is_exchanged_while_its_notebook_reads_runs_nothing_either(
    users, open_folder
):
    folder, mark = open_folder
    users.write(ANA, f'folder = "{folder}"\n[options]\nhold = true\n', "cluster.toml")
    notebook = users.start(ANA, sys.executable, users.write(ANA, LAUNCH))
    until(lambda: list(folder.glob("*/job.json")))
    folder.chmod(0o777)
    code, said = users.python(EVE, (users.home(EVE) / "evil.py").read_text())
    assert code == 0, said
    time.sleep(1.5)  # the notebook looks at least twice a second
    assert mark.read_text() == ""
    (record,) = folder.glob("mine*/job.json")
    subprocess.run(["scontrol", "release", json.loads(record.read_text())["job"]], check=True)
    said, _ = notebook.communicate(timeout=100)
    assert said.startswith("JobFailed job "), said


LONG = LAUNCH.replace("return os.getuid()", "print('x' * 4_000_000)\n    return os.getuid()")


def test_a_jobs_folder_that_is_full_is_named_before_the_run_and_in_it(users, open_folder):
    folder, _ = open_folder
    inside = ["nsenter", f"--mount=/proc/{users.slurm.process}/ns/mnt"]
    options = f"size=1m,mode=700,uid={folder.stat().st_uid}"
    mount = [*inside, "mount", "-t", "tmpfs", "-o", options, "none", folder]
    subprocess.run(mount, check=True)
    code, said = users.python(ANA, LONG)
    words = (
        f"the jobs' folder {folder} cannot be written (No space left on device): name another one"
    )
    assert code == 0 and said.startswith("JobFailed job ") and words in said, said
    fill = f"head -c 2000000 /dev/zero > {folder}/fill"
    subprocess.run([*inside, "sh", "-c", f"{fill} || true"], check=True, capture_output=True)
    before = subprocess.run(
        ["squeue", "--noheader", "--states=all"], capture_output=True, text=True
    )
    code, said = users.python(ANA, LAUNCH)
    assert code == 0 and said.startswith("ValueError ") and words in said, said
    after = subprocess.run(["squeue", "--noheader", "--states=all"], capture_output=True, text=True)
    assert before.stdout.count("\n") == after.stdout.count("\n"), "nothing was submitted"
