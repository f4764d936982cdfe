"""Lightning's Trainer: the loop is the framework's, and a LightningModule says what a step is."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import job


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = job.torch_model()
        self.log_of_job = job.Log()

    def training_step(self, batch, _index):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.model(images), labels)
        self.log_of_job.step(loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=job.LR)

    def train_dataloader(self):
        # Of its own accord Trainer would shuffle the training data, whatever the loader does.
        ranks = self.trainer.world_size
        sampler = DistributedSampler(
            job.torch_data(), ranks, self.trainer.global_rank, shuffle=False
        )
        return DataLoader(sampler.dataset, batch_size=job.BATCH // ranks, sampler=sampler)

    def on_train_end(self):
        mine = torch.tensor(self.log_of_job.losses, dtype=torch.float64)
        losses = self.all_gather(mine).mean(0)
        if self.trainer.is_global_zero:
            self.log_of_job.report(losses)


def main():
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1, use_distributed_sampler=False,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Classifier())


if __name__ == "__main__":
    main()
