"""How many processes Accelerate says that there are. Lesson 29 starts this with `accelerate launch --cpu
--num_processes 2` and with `torchrun --nproc-per-node 2`.
"""

from accelerate import Accelerator

accelerator = Accelerator(cpu=True)
if accelerator.is_main_process:
    print("FOUND", accelerator.num_processes, flush=True)
accelerator.end_training()
