"""Lightning's Trainer: the loop is the framework's, and a LightningModule says what a step is."""

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader

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

    def on_train_end(self):
        mine = torch.tensor(self.log_of_job.losses, dtype=torch.float64)
        losses = self.all_gather(mine).mean(0)
        if self.trainer.is_global_zero:
            self.log_of_job.report(losses)


def main():
    # Trainer puts a DistributedSampler on the loader, which does not shuffle one that did not.
    loader = DataLoader(job.torch_data(), batch_size=job.BATCH // 2)
    trainer = lightning.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", max_epochs=1,
        logger=False, enable_checkpointing=False, enable_progress_bar=False,
    )  # fmt: skip
    trainer.fit(Classifier(), loader)


if __name__ == "__main__":
    main()
