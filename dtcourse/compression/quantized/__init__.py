"""Fewer bits a number: every number travels, each in 16, 8, 4, 2 or 1 bits.

In the order in which to read them:

    casts.py                16-bit floats, which can be added on the way; 8-bit floats with a scale
    stochastic_rounding.py  rounded up or down, so that the expectation is the number
    integers.py             8, 4 or 2 bits, a scale a block, rounded to the nearest or by chance
    integers_triton.py      the same on a GPU, in three kernels
    qsgd.py                 so many levels of a bucket's length, by chance
    elias.py                QSGD's codes in variable length, as in its paper: few bits for the many zeros
    ternary.py              TernGrad: -1, 0 or 1, by chance; ranks that share a scale add whole numbers
    signs.py                one bit a number
    onebit.py               1-bit SGD: one bit a number, two values a block
    vote.py                 one bit there, one bit back: signSGD with majority vote
    onebit_adam.py          1-bit Adam: an optimizer that sends its momentum
"""
