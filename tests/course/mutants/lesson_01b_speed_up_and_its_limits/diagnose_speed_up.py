"""Answers to diagnose_speed_up: see test_exercises.py."""

MUTANTS = [
    ("the longest averaging is the network's", "the rank that nobody waits for", (("min(parts[\"averaging\"] for", "max(parts[\"averaging\"] for"),)),
    ("a rank is never at fault", "the rank that nobody waits for", (("    return max(lost, key=lost.get)", "    return max(lost, key=lost.get)[0], None"),)),
    ("the rank after", "the rank that nobody waits for", ((
        '("rank", slow): longest - middle', '("rank", slow + 1): longest - middle'),)),
    ("images are believed", "agree with each other", (('    if log["images_per_second"] > 1.5 * log["batch"] / seconds:\n        return "counted", None\n', ""),)),
    ("the clock is believed", "agree with each other", (('    if max(sum(parts.values()) for parts in ranks) < 0.9 * seconds:\n        return "clock", None\n', ""),)),
    ("speed-up in place of efficiency", "What would be left to gain", (('log["alone"] / seconds / len(ranks) > 0.9', 'log["alone"] / seconds > 5.9'),)),
    ("the update is divided, too", "would be shorter", (('max(parts["update"] for parts in ranks)', 'max(parts["update"] for parts in ranks) / len(ranks)'), ('min(parts["averaging"] for', '2 * min(parts["averaging"] for'))),
    ("loading is hidden, somebody says", "would be shorter", (('        ("data", None): max(parts["data"] for parts in ranks),\n', ""),)),
    ("the largest part is to blame", "would be shorter", (('longest - middle', 'longest'),)),
]  # fmt: skip

NOTHING = [
    ("always healthy", '\ndef diagnose_speed_up(log):\n    return "healthy", None\n'),
]

ACCEPTED = [
    (
        "with tensors: the step against an ideal one",
        """
def diagnose_speed_up(log):
    table = torch.tensor([list(parts.values()) for parts in log["ranks"]], dtype=torch.double)
    data, compute, averaging, update = table.T
    if log["seconds"] * log["images_per_second"] / log["batch"] > 1.2:
        return "counted", None
    if log["seconds"] - table.sum(1).max() > 0.2 * log["seconds"]:
        return "clock", None
    late = compute.argmax()
    others = torch.cat([compute[:late], compute[late + 1:]]).mean()
    if compute[late] > 1.25 * others:
        return "rank", int(late)
    if log["alone"] / len(table) > 0.88 * log["seconds"]:
        return "healthy", None
    loss = torch.stack([averaging.min(), update.mean(), data.mean()])
    return ("network", "update", "data")[loss.argmax()], None
""",
    ),
    (
        "by shares of the step, ranks last",
        """
def diagnose_speed_up(log):
    ranks, step = log["ranks"], log["seconds"]
    if not 0.8 < log["images_per_second"] / (log["batch"] / step) < 1.25:
        return ["counted", None]
    shares = {
        name: min(parts[name] for parts in ranks) / step
        for name in ("data", "averaging", "update")
    }
    if not any(sum(parts.values()) > 0.8 * step for parts in ranks):
        return ["clock", None]
    compute = [parts["compute"] for parts in ranks]
    if max(compute) / min(compute) > 1.3:
        return ["rank", compute.index(max(compute))]
    if sum(shares.values()) < 0.12:
        return ["healthy", None]
    name = max(shares, key=shares.get)
    return ["network" if name == "averaging" else name, None]
""",
    ),
]
