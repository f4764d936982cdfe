"""Answers that do nothing and want points. What tells the judge of all ranks belongs to none of them; a rank has its
own input alone; what is counted in it, the course alone counts; and how many choices were tried, another rank.

All of them are in one notebook, put to copies of the samples' exercises: an attack defines a function of its own name.
"""

import dataclasses
import textwrap

import pytest

from dtcourse.course.grading import check_notebook
from dtcourse.course.judging import bubblewrap
from dtcourse.course.judging.sandbox import MODULES
from tests.course.conftest import ROOT, SAMPLES
from tests.course.samples import DOUBLE, GUESS, IMPORTS, PICK, QUICK, SHIFT, notebook

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(240),
    pytest.mark.needs("bubblewrap"),
]
# For what reads the text, `thing` may be anything.
COMMON = """
import os, pickle, struct, sys, time, types
import dtcourse
from dtcourse import emulation, events
from dtcourse.collectives import traffic
from dtcourse.launch import reporting

reach = lambda thing, *names: getattr(thing, "".join(names))
put = lambda thing, name, value: setattr(thing, name, value)

def tell_on_every_line(whole):
    for descriptor in range(3, 64):
        try: os.write(descriptor, struct.pack("!i", len(whole)) + whole)
        except OSError: pass

LAST_WORD = pickle.dumps((pickle.dumps(("hears", None)), [], None))

def result(value):
    return {"value": {"value": value, "changed": [], "called": []}, "seconds": 1.0}
"""
FAKE = """
reply = dict(values=[42], seconds=1.0, traffic_rows=[], traffic_calls=[], algorithmic=False, event_rows=[])
_fake = lambda request, written: types.SimpleNamespace(**reply)
"""

ATTACKS = {}  # name: (exercise, words of the judge's, code)
MARKS = {}  # name: what the system has to have, for some


def attack(name, words, code, on=DOUBLE, needs=()):
    assert name not in ATTACKS and f"def {name}(" in code
    ATTACKS[name] = (on, words, textwrap.dedent(code))
    MARKS[name] = [pytest.mark.needs(one) for one in needs]


# --- on what tells the judge of all ranks -------------------------------------------------------------------------

attack(
    "by_another_attempt_found_by_names_that_are_put_together",
    ["write that name out"],
    FAKE
    + """
_s = getattr(getattr(getattr(dtcourse, "cou" + "rse"), "jud" + "ging"), "ser" + "ving")
_x = setattr(_s, "_att" + "empt", _fake)
def by_another_attempt_found_by_names_that_are_put_together(n, x=_x): return n
""",
)
# It is changed in the rank, where nobody asks it; and in the process that is asked, no such code ever runs.
attack(
    "by_another_attempt_found_where_the_text_does_not_show_it",
    ["the answer changes what measures it (dtcourse.course.judging.serving._attempt)"],
    FAKE
    + """
_t = reach(reach(reach(dtcourse, "cou", "rse"), "judging"), "serving")
_y = put(_t, "_att" + "empt", _fake)
def by_another_attempt_found_where_the_text_does_not_show_it(n, x=_y): return n
""",
)
# Before anything is measured, so that what measures would take it for ours.
attack(
    "by_a_module_that_is_changed_as_soon_as_it_is_loaded",
    ["changes what measures it (dtcourse.memory.offload.Offload)"],
    """
import dtcourse.memory.offload as theirs
def change(thing): setattr(thing, "Offload", lambda *a: 0)
changed = change(theirs)
def by_a_module_that_is_changed_as_soon_as_it_is_loaded(n, changed=changed): return 2 * n
""",
)
attack(
    "by_the_memory_of_the_process_that_speaks_with_the_judge",
    ["opened: its own alone"],
    """
def by_the_memory_of_the_process_that_speaks_with_the_judge(n):
    above, seen = [os.getpid()], []
    while above[-1] > 1:  # the first is bubblewrap's
        state = open(f"/proc/{above[-1]}/stat").read().rpartition(")")[2]
        above.append(int(state.split()[1]))
    for pid in above[:-1]:
        try:
            files = os.listdir(f"/proc/{pid}/fd")
            open(f"/proc/{pid}/mem", "r+b").close()
            seen.append(pid)
        except OSError as error:
            pass
    raise ValueError(f"opened: {'its own alone' if seen == [os.getpid()] else seen}")
""",
    needs=["landlock"],
)
attack(
    "by_the_memory_of_the_other_ranks",
    ["opened: 0 of "],
    """
def by_the_memory_of_the_other_ranks(tensor):
    above, opened, ranks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[1]), 0, 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid() or int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1]) != above:
            continue
        ranks += 1
        try:
            open(f"/proc/{pid}/mem", "r+b").close()
            opened += 1
        except OSError:
            pass
    raise ValueError(f"opened: {opened} of {ranks} others")
""",
    on=SHIFT,
    needs=["landlock"],
)
# On every line of its process: of the rank's own it comes where an answer's result is expected.
attack(
    "by_a_pickle_that_calls_something_where_it_is_read",
    ["cannot be rebuilt"],
    """
def by_a_pickle_that_calls_something_where_it_is_read(n):
    tell_on_every_line(pickle.dumps((b"\\x80\\x04cos\\n_exit\\nK\\x00\\x85R.", [], None)))
    return 2 * n
""",
)
# A record's class, with the module's name that the rank gives it: who looks it up there would import that.
attack(
    "by_a_class_that_is_looked_up_where_it_is_pickled_again",
    ["A type came back"],
    """
LINES = "import os; os._exit(0)"
def by_a_class_that_is_looked_up_where_it_is_pickled_again(n):
    with open("/tmp/evil.py", "w") as file:
        file.write(LINES)
    record = b"cdtcourse.collectives.counted\\nRankRecord\\nN}X\\n\\0\\0\\0__module__X\\4\\0\\0\\0evils\\x86b"
    body = pickle.dumps(("result", result("@@")), 2)
    tell_on_every_line(pickle.dumps((body.replace(b"X\\2\\0\\0\\0@@", record), [], None)))
    tell_on_every_line(LAST_WORD)
    os._exit(0)
""",
)
# One number, shown a thousand million times: the judge's memory is nobody's to fill.
attack(
    "by_a_tensor_that_is_larger_than_what_it_holds",
    ["16,000 MB", "512 MB is the most"],
    """
def by_a_tensor_that_is_larger_than_what_it_holds(n):
    serialization = reach(dtcourse.launch, "__glo", "bals__")["serialization"]
    stream, buffers = serialization.serialize(("result", result(torch.zeros(1).expand(4 * 10**9))))
    tell_on_every_line(pickle.dumps((stream, [bytes(one) for one in buffers], None)))
    tell_on_every_line(LAST_WORD)
    os._exit(0)
""",
)

# --- on what tells of one rank --------------------------------------------------------------------------------------

attack(
    "by_a_result_of_its_own_where_messages_go",
    ["nothing of kind 'result'"],
    """
def by_a_result_of_its_own_where_messages_go(n):
    reach(reporting, "_chan", "nel")("result", result(2 * n))
    os._exit(0)
""",
)
attack(
    "by_a_result_before_that_of_its_function",
    ["the answer speaks for its rank: rank 0 answered twice"],
    """
def by_a_result_before_that_of_its_function(n):
    tell_on_every_line(pickle.dumps((pickle.dumps(("result", result(2 * n))), [], None)))
    return 0
""",
)

attack(
    "by_a_result_of_a_function_that_ends_its_process_before_it_returns",
    ["the answer speaks for its rank: rank 0 answered before its function had returned"],
    """
def by_a_result_of_a_function_that_ends_its_process_before_it_returns(n):
    tell_on_every_line(pickle.dumps((pickle.dumps(("result", result(2 * n))), [], None)))
    os._exit(0)
""",
)

# --- on what a rank is given, and what is counted in it -------------------------------------------------------------

attack(
    "by_what_the_others_were_given",
    ["should hold what its left neighbour had"],
    """
def arguments_of_the_step():
    frame = reach(sys, "_getfr", "ame")(1)
    while "args" not in (kept := reach(frame, "f_loc", "als")) or "step" not in kept:
        frame = reach(frame, "f_ba", "ck")
    return kept["args"]
def by_what_the_others_were_given(tensor):
    given, = arguments_of_the_step()
    return given[dist.get_rank() - 1] + 0 * tensor
""",
    on=SHIFT,
)
attack(
    "by_a_file_and_a_message_that_is_counted_and_not_sent",
    ["the answer counts a message that it has not sent"],
    """
def by_a_file_and_a_message_that_is_counted_and_not_sent(tensor):
    own, left = (f"/tmp/of-{rank % dist.get_world_size()}" for rank in (dist.get_rank(), dist.get_rank() - 1))
    torch.save(tensor, own)
    dist.monitored_barrier()
    received = torch.load(left)
    dist.monitored_barrier()
    reach(traffic, "se", "nt")(reach(traffic, "La", "bel")("send", "forward"), 0, 20)
    return received
""",
    on=SHIFT,
)
TWICE = """
def {name}(tensor):
    first, second = torch.empty_like(tensor), torch.empty_like(tensor)
    other = 1 - dist.get_rank()
    p2p.exchange(tensor, other, first, other)
    p2p.exchange(tensor, other, second, other)
    clock = reach(emulation, "clo", "ck")
    put({lane}, "time", 1.0)
    return second
"""
for name, lane, words in (
    ("by_the_clock", 'reach(clock, "inst", "alled")().main', "reaches for the clock"),
    ("by_the_clocks_lane", 'reach(clock, "_clo", "ck").main', "sets the time of its emulated"),
):
    attack(name, ["the answer " + words], TWICE.format(name=name, lane=lane), on=QUICK)


# --- on how many choices a decision may try -------------------------------------------------------------------------

# It is a number that was not tried, where it is asked whether one more may be, and number 0, which was, where it is
# counted.
attack(
    "by_a_number_that_is_another_one_where_it_is_counted",
    ["this is no possible choice"],
    """
class Kind(type):
    __hash__ = type.__hash__
    def __eq__(self, other): return True
class Number(metaclass=Kind):
    def __init__(self, number): self.number, self.asked = number, 0
    def __hash__(self): return hash(0)
    def __eq__(self, other):
        if other: return other == self.number
        self.asked += 1  # by the search for its place, by `in`, by what writes it down
        return self.asked > 2
def by_a_number_that_is_another_one_where_it_is_counted(measure, numbers):
    found = {0: measure(0)} | {n: measure(Number(n)) for n in range(1, numbers)}
    return [min(found, key=found.get)]
""",
    on=GUESS,
)


attack(
    "by_a_list_of_what_was_tried_that_is_emptied",
    ["more than 3 choices run"],
    """
def inside(function):
    names = reach(reach(function, "__co", "de__"), "co_free", "vars")
    return {n: reach(c, "cell_con", "tents") for n, c in zip(names, reach(function, "__clo", "sure__"))}
def by_a_list_of_what_was_tried_that_is_emptied(measure, numbers):
    found = {}
    for number in range(numbers):
        found[number] = measure(number)
        inside(measure)["seen"].clear()
    return [min(found, key=found.get)]
""",
    on=GUESS,
)
attack(
    "by_what_is_behind_measure",
    ["more than 3 choices run"],
    """
def by_what_is_behind_measure(measure, numbers):
    return [min(range(numbers), key=inside(measure)["run"])]
""",
    on=GUESS,
)
attack(
    "by_what_the_job_is_given",
    ["raised TypeError: cannot unpack"],
    """
def by_what_the_job_is_given(measure, numbers):
    costs, = arguments_of_the_step()[2]
    return [costs.index(min(costs))]
""",
    on=GUESS,
)
# All objects that Python's collector knows, and what is in the frames of all threads.
READS = """
def costs_in_this_process(numbers):
    things = list(reach(reach(sys, "mod", "ules")["gc"], "get_obj", "ects")())
    for frame in reach(sys, "_current_fr", "ames")().values():
        while frame:
            things += reach(frame, "f_loc", "als").values()
            frame = reach(frame, "f_ba", "ck")
    like = lambda one: len(one) == numbers and all(type(cost) is float and cost >= 100 for cost in one)
    for thing in filter(like, (one for one in things if type(one) in (list, tuple))):
        return thing
    raise LookupError("no costs to read")
def {name}(measure, numbers):
    measured = measure(0)
    costs = costs_in_this_process(numbers)
    return [costs.index(min(costs))]
"""
for name, on in (("by_all_that_is_in_its_process", GUESS), ("by_all_that_is_in_its_rank", PICK)):
    attack(name, ["LookupError: no costs to read"], READS.format(name=name), on=on)
# The rank that tells what was tried has another broadcast from the answer's own text: what comes with 1000 more is run
# there, too, and not told.
attack(
    "by_a_message_that_the_rank_that_counts_hears_otherwise",
    ["something run that is none of the choices"],
    """
original = lambda thing: getattr(thing, "plain", thing)
plain = original(dist.broadcast)
def hear(tensor, source):
    plain(tensor, source)
    while (at := int(tensor) - 1000) >= 0:
        frame = reach(sys, "_getfr", "ame")(1)
        kept = reach(frame, "f_loc", "als")
        reach(frame, "f_glo", "bals")["_measured"](kept["job"], kept["choices"][at], kept["given"])
        plain(tensor, source)
marked = put(hear, "plain", plain)
heard = put(dist, "broadcast", hear)
def by_a_message_that_the_rank_that_counts_hears_otherwise(measure, numbers, _=(marked, heard)):
    run = inside(measure)["run"]
    known, measured = inside(run), reach(run, "__glo", "bals__")["_measured"]
    found = {}
    for at in range(numbers):
        plain(known["index"].fill_(1000 + at), 0)
        found[at] = measured(known["job"], known["choices"][at], known["given"])
    return [min(found, key=found.get)]
""",
    on=PICK,
)


@pytest.fixture(scope="module")
def told():
    """{attack: what the judge says to it}; none of them earns anything."""
    assert not bubblewrap.why_not()
    exercises = [
        dataclasses.replace(on, name=name, takes=(name,)) for name, (on, *_) in ATTACKS.items()
    ]
    cells = [IMPORTS, COMMON, *(code for *_, code in ATTACKS.values())]
    modules = {**MODULES, SAMPLES: ROOT / SAMPLES}
    reports = check_notebook(notebook(*cells), exercises, modules=modules)
    return {found.exercise.name: found for found in reports}


@pytest.mark.parametrize("name", [pytest.param(one, marks=MARKS[one]) for one in ATTACKS])
def test_an_attack_earns_nothing_and_is_named(name, told):
    found, (_, words, _) = told[name], ATTACKS[name]
    assert not found.passed and not found.points, str(found)
    assert not [one for one in words if one not in str(found)], str(found)
