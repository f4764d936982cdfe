"""The index of topics: where each is taught, and the code that teaches it, not what every lesson stands on."""

from __future__ import annotations

from dtcourse.course import authoring, topics
from dtcourse.course import notebook as nbfile

LESSON = """\
# %% [markdown] id=title
# # 03 · Collectives

# %% id=imports
import torch.distributed as dist
from dtcourse import device
from dtcourse.collectives import naive, traffic
from dtcourse.emulation import EmulatedNetwork, now
from dtcourse.models import MLP, MoE

# %% [markdown] id=one
# ## Scatter

# %% id=by-hand topics=03.scatter
def my_scatter(x):
    x = x.to(device.current())
    if dist.get_rank() == 0:
        dist.send(x, 1)

def there_and_back():
    return now(), MLP(2)

# %% id=shown topics=03.scatter
print(naive.__file__, naive.broadcast_steps, traffic.counting)

# %% [markdown] id=two
# ## Volume

# %% id=volume topics=03.volume
net = EmulatedNetwork(device.current())

# %% id=beside
MoE()

# %% [markdown] id=three
# ## Barrier

# %% id=helper topics=03.barrier
def wait():
    return now()

# %% [markdown] id=four
# ## The emulated network

# %% id=network topics=03.emulated-network,03.latency
EmulatedNetwork(now(), device.current())
"""


def test_the_code_of_a_topic_is_what_teaches_it(tmp_path):
    nbfile.write(authoring.build(LESSON), tmp_path / "03-collectives.ipynb")
    found = topics.index(tmp_path)
    assert {name: found[f"03.{name}"].code for name in ("scatter", "volume", "barrier")} == {
        # By hand, the course's, PyTorch's; no device, clock, model to try it on, or number of the rank.
        "scatter": [
            "my_scatter",
            "dtcourse.collectives.naive.broadcast_steps",
            "torch.distributed.send",
        ],
        "volume": ["dtcourse.models.MoE"],  # of the same section
        "barrier": ["wait"],
    }
    assert found["03.emulated-network"].code == ["dtcourse.emulation.EmulatedNetwork"]
    assert found["03.latency"].code == [
        "dtcourse.emulation.EmulatedNetwork",
        "dtcourse.emulation.now",
    ]


def test_no_topic_of_the_course_has_plumbing_alone():
    found = topics.index()
    for name, entry in found.items():
        itself = name.partition(".")[2].replace("-", "")
        good = [one for one in entry.code if topics._teaches(one) or itself in one.lower()]
        assert good or not entry.code, name
    assert found["03.scatter"].code[0] == "my_scatter"
