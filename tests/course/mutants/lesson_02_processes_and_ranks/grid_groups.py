"""Answers to grid_groups: see test_exercises.py."""

_GRID = """
def grid_groups(columns):
    import torch.distributed as dist
    rank, world_size = dist.get_rank(), dist.get_world_size()
    if world_size % columns:
        raise ValueError(f"{world_size} ranks do not fill rows of {columns}")
    {body}
"""


def _grid(body: str) -> str:
    return _GRID.replace("{body}", body.strip().replace("\n", "\n    "))


NAMED = "only the members call new_group"

MUTANTS = [
    (
        "PyTorch's mesh, by a name that no text shows",
        "which order does every rank make them",
        _grid("""
reach = lambda thing, name: getattr(thing, name)
make = reach(reach(dist, "device_" + "mesh"), "init_device_" + "mesh")
mesh = make("cpu", (world_size // columns, columns))
return mesh.get_group(1), mesh.get_group(0)
"""),
    ),
    (
        "PyTorch's sub-groups from a list",
        "this exercise asks you to write that yourself",
        _grid("""
rows = [list(range(start, start + columns)) for start in range(0, world_size, columns)]
below = [list(range(start, world_size, columns)) for start in range(columns)]
row, _ = dist.new_subgroups_by_enumeration(rows)
column, _ = dist.new_subgroups_by_enumeration(below)
return row, column
"""),
    ),
    (
        "only the members call new_group",
        "in the same order, its own or not",
        _grid("""
start = rank - rank % columns
row = dist.new_group(range(start, start + columns))
column = dist.new_group(range(rank % columns, world_size, columns))
return row, column
"""),
    ),
    (
        "keeps the last group instead of its own",
        "that it is a member of",
        _grid("""
for start in range(0, world_size, columns):
    row = dist.new_group(range(start, start + columns))
for start in range(columns):
    column = dist.new_group(range(start, world_size, columns))
return row, column
"""),
    ),
    (
        "one rank short in each row",
        "the ranks of its row are",
        _grid("""
for start in range(0, world_size, columns):
    group = dist.new_group(range(start, max(start + 1, start + columns - 1)))
    if start <= rank < start + columns:
        row = group if dist.get_rank(group) >= 0 else dist.group.WORLD
for start in range(columns):
    group = dist.new_group(range(start, world_size, columns))
    if rank % columns == start:
        column = group
return row, column
"""),
    ),
    (
        "column first",
        "The row comes first",
        _grid("""
mine = []
for start in range(columns):
    group = dist.new_group(range(start, world_size, columns))
    if rank % columns == start:
        mine.append(group)
for start in range(0, world_size, columns):
    group = dist.new_group(range(start, start + columns))
    if start <= rank < start + columns:
        mine.append(group)
return tuple(mine)
"""),
    ),
    (
        "right for square grids only",
        "on a grid of 2 x 3",
        _grid("""
rows = world_size // columns
mine = []
for start in range(rows):
    members = range(start * rows, start * rows + columns)
    group = dist.new_group(members)
    if rank in members:
        mine.append(group)
for start in range(columns):
    members = range(start, world_size, columns)
    group = dist.new_group(members)
    if rank in members:
        mine.append(group)
return mine[0], mine[-1]
"""),
    ),
    (
        "says nothing when the ranks do not fill the grid",
        "cannot fill rows of",
        """
def grid_groups(columns):
    import torch.distributed as dist
    rank, world_size = dist.get_rank(), dist.get_world_size()
    mine = []
    rows = [range(start, min(start + columns, world_size)) for start in range(0, world_size, columns)]
    for members in rows + [range(start, world_size, columns) for start in range(min(columns, world_size))]:
        group = dist.new_group(members)
        if rank in members:
            mine.append(group)
    return mine[0], mine[1]
""",
    ),
]

NOTHING = [
    (
        "refuses every grid, with the numbers",
        """
def grid_groups(columns):
    raise ValueError(f'{dist.get_world_size()} ranks, {columns} columns')
""",
    ),
    (
        "everyone in one group",
        """
def grid_groups(columns):
    return dist.group.WORLD, dist.group.WORLD
""",
    ),
    (
        "PyTorch's mesh",
        """
from torch.distributed.device_mesh import init_device_mesh


def grid_groups(columns):
    mesh = init_device_mesh('cpu', (dist.get_world_size() // columns, columns))
    return mesh.get_group(1), mesh.get_group(0)
""",
    ),
]

ACCEPTED = [
    (
        "columns before rows, from a tensor",
        """
def grid_groups(columns):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size % columns:
        raise ValueError(f"{size} ranks, {columns} columns: no grid")
    grid = torch.arange(size).view(-1, columns)
    below = [dist.new_group(members) for members in grid.T.tolist()]
    beside = [dist.new_group(members) for members in grid.tolist()]
    return beside[rank // columns], below[rank % columns]
""",
    ),
    (
        "each rank makes its own two, with its own members alone",
        """
def grid_groups(columns):
    rank, size = dist.get_rank(), dist.get_world_size()
    if size % columns:
        raise ValueError(f"{size} ranks, {columns} columns: no grid")
    first = rank - rank % columns
    row, column = range(first, first + columns), range(rank % columns, size, columns)
    return [dist.new_group(list(own), use_local_synchronization=True) for own in (row, column)]
""",
    ),
]
