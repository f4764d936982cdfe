"""Answers to meet: see test_exercises.py."""

MUTANTS = [
    (
        "reads the count, then writes it: two read the same",
        "can another process come between your reading",
        """
def meet(store, address, world_size):
    number = int(store.get("count")) if store.check(["count"]) else 0
    store.set("count", str(number + 1))
    store.set(f"address/{number}", address)
    return number, [store.get(f"address/{other}").decode() for other in range(world_size)]
""",
    ),
    (
        "counts from one, and waits for a number that nobody has",
        "you wait for a number that nobody has",
        """
def meet(store, address, world_size):
    number = store.add("arrived", 1)
    store.set(f"address/{number}", address)
    return number, [store.get(f"address/{other}").decode() for other in range(world_size)]
""",
    ),
    (
        "counts from one, consistently",
        "What does the first `add` return?",
        """
def meet(store, address, world_size):
    number = store.add("arrived", 1)
    store.set(f"address/{number}", address)
    return number, [store.get(f"address/{other}").decode() for other in range(1, world_size + 1)]
""",
    ),
    (
        "does not wait for those who are late",
        "had returned before the last process came",
        """
def meet(store, address, world_size):
    import time
    number = store.add("arrived", 1) - 1
    store.set(f"address/{number}", address)
    time.sleep(0.1)
    keys = [f"address/{other}" for other in range(world_size)]
    return number, [store.get(key).decode() if store.check([key]) else "" for key in keys]
""",
    ),
    (
        "asks again and again",
        "Do you ask again and again",
        """
def meet(store, address, world_size):
    import time
    number = store.add("arrived", 1) - 1
    store.set(f"address/{number}", address)
    while store.add("arrived", 0) < world_size:
        time.sleep(0.01)
    return number, [store.get(f"address/{other}").decode() for other in range(world_size)]
""",
    ),
    (
        "uses the rank that strangers do not have",
        "numbers follow the order of arrival",
        """
def meet(store, address, world_size):
    import os
    number = int(os.environ["RANK"])
    store.set(f"address/{number}", address)
    return number, [store.get(f"address/{other}").decode() for other in range(world_size)]
""",
    ),
    (
        "puts its own address first",
        "in which order do you read them",
        """
def meet(store, address, world_size):
    number = store.add("arrived", 1) - 1
    store.set(f"address/{number}", address)
    others = [other for other in range(world_size) if other != number]
    return number, [address] + [store.get(f"address/{other}").decode() for other in others]
""",
    ),
]

NOTHING = [
    (
        "everyone is alone",
        """
def meet(store, address, world_size):
    return 0, [address] * world_size
""",
    ),
]

ACCEPTED = [
    (
        "the last one to come writes the list for all",
        """
def meet(store, address, world_size):
    number = store.add("people", 1) - 1
    store.set(f"person-{number}", address)
    if number < world_size - 1:
        return number, store.get("all").decode().split()
    everyone = [store.get(f"person-{n}").decode() for n in range(world_size)]
    store.set("all", " ".join(everyone))
    return number, everyone
""",
    ),
    (
        "takes the first place that is free, and reads who has the others",
        """
def meet(store, address, world_size):
    everyone = []
    for number in range(world_size):
        everyone.append(store.compare_set(f"place/{number}", "", address).decode())
        if everyone[-1] == address:
            break
    return number, everyone + [store.get(f"place/{n}").decode() for n in range(number + 1, world_size)]
""",
    ),
]
