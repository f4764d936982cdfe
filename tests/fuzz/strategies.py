"""Random programs: small ones first, so that a failing one shrinks to what matters."""

from __future__ import annotations

from hypothesis import strategies as st

from dtcourse.verify.chains import CONTAINERS, Block
from dtcourse.verify.programs import Forward, MicroBatch, Program

RECOMPUTED = [
    "tensor",
    "tuple",
]  # out of anything else, torch's reentrant checkpoint loses the graph
KINDS = ["linear", "scale", "narrow", "number", "empty"]


def rarely() -> st.SearchStrategy[bool]:
    """True in one of four."""
    return st.integers(0, 3).map(lambda n: n == 3)


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Block, ...]:
    """One to four. The first one always gives the loss a graph."""
    made: list[Block] = []
    for i in range(draw(st.integers(1, 4))):
        first = i == 0
        optional = not first and draw(rarely())
        beside = not first and draw(rarely())
        recompute = ""
        if draw(rarely()):
            recompute = "not reentrant" if first or draw(st.booleans()) else "reentrant"
        if not first and draw(rarely()):
            original = draw(st.integers(0, i - 1))
            while made[original].is_repeated:
                original = made[original].same_as[0]  # type: ignore[index]
            again = draw(st.booleans())
            same_as = (original, "module" if again else "weight")
            kind, inner = made[original].kind, made[original].inner
            if again:
                if made[original].returns not in RECOMPUTED and recompute == "reentrant":
                    recompute = "not reentrant"
                made.append(
                    Block(
                        kind, same_as=same_as, optional=optional, beside=beside, recompute=recompute
                    )
                )
                continue
        else:
            same_as = None
            kind = "linear" if first else draw(st.sampled_from(KINDS))
            inner = draw(st.integers(1, 5)) if kind == "narrow" else 1
        frozen = set()
        if draw(rarely()):
            frozen.add("bias" if first or draw(st.booleans()) else "weight")
        made.append(
            Block(
                kind,
                inner,
                bias=draw(st.booleans()),
                frozen=frozenset(frozen),
                same_as=same_as,
                optional=optional,
                beside=beside,
                recompute=recompute,
                returns=draw(
                    st.sampled_from(RECOMPUTED if recompute == "reentrant" else list(CONTAINERS))
                )
                if draw(rarely())
                else "tensor",
                buffer=draw(rarely()),
                unit=draw(st.booleans()),
            )
        )
    return tuple(made)


@st.composite
def programs(draw: st.DrawFn, ranks: int) -> Program:
    """A program for that many ranks; the last backward of each step averages."""
    chain = draw(blocks())
    optional = [i for i, block in enumerate(chain) if block.optional]
    alike = draw(st.booleans())  # the ranks leave out the same blocks

    def left_out() -> frozenset[int]:
        return frozenset(i for i in optional if draw(st.booleans()))

    def forward() -> Forward:
        rows = tuple(draw(st.integers(0, 3)) for _ in range(ranks))
        if alike:
            return Forward(rows, (left_out(),) * ranks)
        return Forward(rows, tuple(left_out() for _ in range(ranks)))

    steps = []
    for _ in range(draw(st.integers(1, 3))):
        count = draw(st.integers(1, 3))
        steps.append(
            tuple(
                MicroBatch(
                    tuple(forward() for _ in range(1 + draw(rarely()))),
                    sync=i == count - 1 or draw(st.booleans()),
                )
                for i in range(count)
            )
        )
    return Program(
        ranks,
        chain,
        tuple(steps),
        width=draw(st.integers(1, 3)),
        returns=draw(st.sampled_from(list(CONTAINERS))) if draw(rarely()) else "tensor",
        momentum=0.5 * draw(rarely()),
        weight_decay=0.25 * draw(rarely()),
        set_to_none=not draw(rarely()),
    )
