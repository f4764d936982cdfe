"""Builds what DeepSpeed compiles at first use, its collectives in shared memory: once, before two processes start.

A build that was killed leaves a lock, for which all later ones wait without a word; so what is there is removed first.
"""

import os
import shutil

from deepspeed.accelerator import get_accelerator

shutil.rmtree(os.environ["TORCH_EXTENSIONS_DIR"], ignore_errors=True)
get_accelerator().create_op_builder("ShareMemCommBuilder").load()
