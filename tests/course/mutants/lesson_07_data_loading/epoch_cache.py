"""Answers to epoch_cache: see test_exercises.py."""

CACHE = """
class EpochCache:
    def __init__(self, capacity):
        self.capacity, self.kept = capacity, {{}}
    def get(self, index, make):
{body}
"""

MUTANTS = [
    (
        "least recently used",
        "which of the two comes sooner",
        CACHE.format(
            body="""
        sample = self.kept.pop(index) if index in self.kept else make(index)
        self.kept[index] = sample
        if len(self.kept) > self.capacity:
            del self.kept[next(iter(self.kept))]
        return sample
"""
        ),
    ),
    (
        "first in, first out",
        "which of the two comes sooner",
        CACHE.format(
            body="""
        if index in self.kept:
            return self.kept[index]
        sample = make(index)
        self.kept[index] = sample
        if len(self.kept) > self.capacity:
            del self.kept[next(iter(self.kept))]
        return sample
"""
        ),
    ),
    (
        "keeps everything",
        "How many do you keep",
        CACHE.format(
            body="""
        if index not in self.kept:
            self.kept[index] = make(index)
        return self.kept[index]
"""
        ),
    ),
    (
        "one place for several samples",
        "Under which key",
        CACHE.format(
            body="""
        if not self.capacity:
            return make(index)
        place = index % self.capacity
        if place not in self.kept:
            self.kept[place] = make(index)
        return self.kept[place]
"""
        ),
    ),
    (
        "keeps one too many",
        "How many do you keep",
        CACHE.format(
            body="""
        if index in self.kept:
            return self.kept[index]
        sample = make(index)
        if len(self.kept) <= self.capacity:
            self.kept[index] = sample
        return sample
"""
        ),
    ),
]

NOTHING = [
    (
        "keeps nothing",
        """
class EpochCache:
    def __init__(self, capacity):
        pass

    def get(self, index, make):
        return make(index)
""",
    ),
]

ACCEPTED = [
    (
        "those with the lowest numbers",
        """
class EpochCache:
    def __init__(self, capacity):
        self.places = [None] * capacity

    def get(self, index, make):
        if index >= len(self.places):
            return make(index)
        if self.places[index] is None:
            self.places[index] = make(index)
        return self.places[index]
""",
    ),
    (
        "room counted down",
        """
class EpochCache:
    def __init__(self, capacity):
        self.room, self.samples = capacity, {}

    def get(self, index, make):
        try:
            return self.samples[index]
        except KeyError:
            sample = make(index)
        if self.room:
            self.room -= 1
            self.samples[index] = sample
        return sample
""",
    ),
]
