"""A tied weight of which a pipeline's first and last stage hold copies is one value in a checkpoint."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch
import torch.distributed.checkpoint as dcp

from dtcourse import checkpoint, launch
from dtcourse.parameters.naming import entries
from dtcourse.parameters.placement import local
from dtcourse.parameters.whole import full_state_dict
from dtcourse.verify import compare
from tests.pairs import pipelines
from tests.pairs.layouts import GPT2, build
from tests.pairs.micro_batches import Alone
from tests.pairs.pipelines import SHARDED, Piped
from tests.pairs.saving import write

TIED = "token_embedding.weight", "output.weight"


def changed(layout, folder):
    """The copy on the last stage is another one before it is saved."""
    mesh = layout.mesh()
    pipeline = layout.pipeline(GPT2, mesh)
    (copy,) = [e for e in entries(pipeline.module) if {*e.names} & {*TIED}] or [None]
    assert copy is not None
    if copy.names == ["output.weight"]:
        piece = local(copy.parameter).view(-1)
        piece[: min(1, len(piece))] += 0.25
    with pytest.raises(ValueError) as caught:
        checkpoint.save(folder, pipeline.module)
    return str(caught.value)


@pytest.mark.parametrize("other", ["tensor", *SHARDED, "ZeRO-2"])
def test_copies_that_differ_are_not_saved(other, tmp_path):
    words = (
        r"token_embedding.weight on rank [02] and output.weight on rank [13] are copies of one parameter, and differ "
        r"in [12] of \d+ elements, by at most 0.25: .*Nothing was saved"
    )
    for said in launch(changed, 4, Piped(other, "1F1B"), str(tmp_path / "saved")):
        assert re.search(words, said), said
    assert not (tmp_path / "saved").exists()


@pytest.mark.parametrize("other", ["tensor", *SHARDED, "ZeRO-1"])
def test_one_of_the_copies_is_written_under_all_names(other, tmp_path):
    folder = str(tmp_path / "saved")
    saved = launch(write, 4, Piped(other, "1F1B"), GPT2, folder, 1)[0]
    metadata = dcp.FileSystemReader(folder).read_metadata()
    files = {
        name: {at.relative_path for index, at in metadata.storage_data.items() if index.fqn == f"model.{name}"}
        for name in TIED
    }  # fmt: skip
    last = {f"__{rank}_0.distcp" for rank in (1, 3)}  # axes are (other, pipe)
    for name in TIED:
        assert files[name]
        assert not files[name] & last
    assert torch.equal(saved[TIED[0]], saved[TIED[1]])


def steps_by_three(other):
    """Three replicas' sum depends on its order, and so on where in its bucket a gradient lies."""
    training, gradients = Piped(other, "1F1B", (3, 2)).training(GPT2), []
    for step in range(2):
        training.step(step)
        (copy,) = [e for e in entries(training.wrapped) if {*e.names} & {*TIED}]
        gradients.append(copy.parameter.grad.clone())
    return gradients, copy.parameter.detach()


@pytest.mark.parametrize("other", ["data_parallel", "ZeRO-1"])
def test_copies_stay_the_same_bits_on_three_replicas(other):
    (gradients, value), *others = launch(steps_by_three, 6, other)
    for more, other_value in others:
        assert all(map(torch.equal, more, gradients))
        assert torch.equal(other_value, value)


def two_values(layout, folder):
    """The refusal of a checkpoint in which the two names have two values; nothing is changed."""
    pipeline = layout.pipeline(GPT2, layout.mesh(), seed=3)
    before = full_state_dict(pipeline.module)
    with pytest.raises(ValueError) as caught:
        checkpoint.load(folder, pipeline.module)
    compare(full_state_dict(pipeline.module), before, 0.0, "value")
    return str(caught.value)


@pytest.mark.parametrize("other", ["tensor", *SHARDED])
def test_a_checkpoint_with_two_values_is_not_loaded(other, tmp_path):
    folder = str(tmp_path / "saved")
    launch(write, 1, Alone(), replace(GPT2, tied=False), folder, 0)
    words = (
        r"token_embedding.weight and output.weight are one parameter here, and differ in .*/saved in \d+ of \d+ "
        r"elements, by at most 0.\d+. Nothing was loaded"
    )
    for said in launch(two_values, 4, Piped(other, "1F1B"), folder):
        assert re.search(words, said), said


# --- frozen ---------------------------------------------------------------------------------------------------------


@contextmanager
def frozen_embedding():
    """Models are built with it."""
    plain = pipelines.build

    def build(config, seed=0):
        model = plain(config, seed)
        model.token_embedding.requires_grad_(False)
        return model

    with mock.patch.object(pipelines, "build", build):
        yield


def write_frozen(layout, folder):
    with frozen_embedding():
        saved = write(layout, GPT2, folder, 1)
        mesh = layout.mesh()
        pipeline = layout.pipeline(GPT2, mesh)
        pipeline.step(*layout.batch(GPT2, mesh, 0))
        grads = [e.parameter.grad for e in entries(pipeline.module) if {*e.names} & {*TIED}]
    return saved, grads


def change_frozen(layout, folder):
    with frozen_embedding():
        return changed(layout, folder)


@pytest.mark.parametrize("other", ["tensor", *SHARDED, "ZeRO-1"])
def test_a_frozen_tied_weight_is_one_parameter_too(other, tmp_path):
    folder = str(tmp_path / "saved")
    plain = build(GPT2)
    for saved, grads in launch(write_frozen, 4, Piped(other, "1F1B"), folder):
        assert grads == [None] * len(grads), "nothing is added up"
        for name in TIED:
            assert torch.equal(saved[name], plain.token_embedding.weight), "as it was"
    metadata = dcp.FileSystemReader(folder).read_metadata()
    last = {f"__{rank}_0.distcp" for rank in (1, 3)}
    for name in TIED:
        files = {
            at.relative_path
            for index, at in metadata.storage_data.items()
            if index.fqn == f"model.{name}"
        }
        assert files
        assert not files & last, "the first stage writes it under both names"


@pytest.mark.parametrize("other", ["tensor", "ZeRO-1"])
def test_frozen_copies_that_differ_are_not_saved(other, tmp_path):
    for said in launch(change_frozen, 4, Piped(other, "1F1B"), str(tmp_path / "saved")):
        assert re.search("are copies of one parameter, and differ", said), said
    assert not (tmp_path / "saved").exists()
