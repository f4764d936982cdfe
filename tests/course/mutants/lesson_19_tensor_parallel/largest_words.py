"""Answers to largest_words: see test_exercises.py."""

from tests.course.hidden import EVERYONES

_OWN = "    own = min(k, logits.shape[1])\n"
_OFFERS = "    values[:, :own], words[:, :own] = logits.topk(own, dim=1)\n"

MUTANTS = [
    (
        "numbers within the slice",
        "A word's number in a rank's slice is not its number in the vocabulary",
        (("    words += first\n", ""),),
    ),
    (
        "only its own",
        "All k may be on one rank",
        (("    return best, offers[1].gather(1, places)\n", "    return values, words\n"),),
    ),
    (
        "an equal number from each rank",
        "All k may be on one rank",
        (
            (
                "    offers = []\n",
                "    share = -(-k // dist.get_world_size())\n"
                "    values[:, share:] = -torch.inf\n"
                "    offers = []\n",
            ),
        ),
    ),
    (
        "places among the offers",
        "A word's number in a rank's slice is not its number in the vocabulary",
        (("    return best, offers[1].gather(1, places)\n", "    return best, places\n"),),
    ),
    (
        "all logits are gathered",
        "Can a logit that is not among its own rank's k largest",
        (
            (_OWN, "    asked, k = k, max(k, 300)\n    own = min(k, logits.shape[1])\n"),
            ("offers[0].topk(k, dim=1)", "offers[0].topk(asked, dim=1)"),
        ),
    ),
    (
        "zeros where a rank has no more",
        "What fills the rest",
        (("logits.new_full((len(logits), k), -torch.inf)", "logits.new_zeros(len(logits), k)"),),
    ),
    (
        "as many as a slice has",
        "offers all that it has",
        (
            (
                "    return best, offers[1].gather(1, places)\n",
                "    return best[:, :own], offers[1].gather(1, places)[:, :own]\n",
            ),
        ),
    ),
    (
        "the smallest",
        "largest in falling order",
        (("offers[0].topk(k, dim=1)", "offers[0].topk(k, dim=1, largest=False)"),),
    ),
    (
        "in no order",
        "largest in falling order",
        (("offers[0].topk(k, dim=1)", "[one.flip(1) for one in offers[0].topk(k, dim=1)]"),),
    ),
    (
        "through the store, where nothing is counted",
        "Where does the rest come from",
        EVERYONES
        + """def largest_words(logits, first, k):
    return torch.cat(everyones(logits), 1).topk(k, dim=1)
""",
    ),
]

NOTHING = [
    (
        "the first k words",
        """
def largest_words(logits, first, k):
    return logits.new_zeros(len(logits), k), torch.arange(k).expand(len(logits), k)
""",
    ),
]

ACCEPTED = [
    (
        "one gather, of doubles",
        (
            (
                "    for mine in (values, words):\n"
                "        parts = [torch.empty_like(mine) for _ in range(dist.get_world_size())]\n"
                "        dist.all_gather(parts, mine)\n"
                "        offers.append(torch.cat(parts, dim=1))\n",
                "    both = torch.stack([values.double(), words.double()])\n"
                "    parts = [torch.empty_like(both) for _ in range(dist.get_world_size())]\n"
                "    dist.all_gather(parts, both)\n"
                "    numbers, names = torch.cat(parts, dim=2)\n"
                "    offers = [numbers.float(), names.long()]\n",
            ),
        ),
    ),
    (
        "k rounds: the largest of all, and whose it is",
        """
def largest_words(logits, first, k):
    left, values, words = logits.clone(), [], []
    for _ in range(k):
        value, place = left.max(dim=1)
        largest = value.clone()
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        mine = value == largest
        word = torch.where(mine, place + first, -1)
        dist.all_reduce(word, dist.ReduceOp.MAX)
        own = (word >= first) & (word < first + logits.shape[1])
        rows = own.nonzero()[:, 0]
        left[rows, word[rows] - first] = -torch.inf
        values.append(largest)
        words.append(word)
    return torch.stack(values, dim=1), torch.stack(words, dim=1)
""",
    ),
]
