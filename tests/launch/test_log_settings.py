"""What a notebook sets of logging and warnings holds in its ranks."""

from __future__ import annotations

import logging
import sys
import warnings

import pytest

from dtcourse import launch
from dtcourse.launch import RankFailure, log_settings


@pytest.fixture(autouse=True)
def as_it_was():
    """Of this process, after each test."""
    root, own = logging.getLogger(), logging.getLogger("mine")
    before = root.level, list(root.handlers)
    with warnings.catch_warnings():
        yield
    logging.captureWarnings(False)
    logging.disable(logging.NOTSET)
    root.setLevel(before[0])
    for logger, kept in ((root, before[1]), (own, [])):
        for handler in list(logger.handlers):
            if handler not in kept:
                logger.removeHandler(handler)
    own.setLevel(logging.NOTSET)
    own.propagate = True


def speak() -> None:
    logging.getLogger("mine").info("a step")
    logging.getLogger("mine.loader").debug("a detail")


def test_basic_config_reaches_the_ranks(capfd):
    launch(speak, 2)
    assert "a step" not in capfd.readouterr().out
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[%(name)s] %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    launch(speak, 2)
    shown = capfd.readouterr().out
    assert shown.count("[mine] a step") == 2, shown
    assert "a detail" not in shown


def test_so_do_the_level_of_a_logger_and_what_is_disabled(capfd):
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, force=True)
    logging.getLogger("mine").setLevel(logging.DEBUG)
    run = launch(lambda: (speak(), logging.getLogger("mine").level)[1], 1)
    said = capfd.readouterr()
    assert run[0] == logging.DEBUG
    assert "a detail" in said.out + said.err
    logging.disable(logging.DEBUG)
    launch(speak, 1)
    said = capfd.readouterr()
    assert "a detail" not in said.out + said.err
    assert "a step" in said.out + said.err


def test_a_file_stays_the_notebooks(tmp_path):
    logging.basicConfig(filename=tmp_path / "log", level=logging.INFO, force=True)
    assert not log_settings.current().handlers
    launch(speak, 2)
    logging.getLogger().handlers[0].close()
    assert not (tmp_path / "log").read_text()


def test_a_handler_that_pytorch_adds_in_each_process_is_left_to_it():
    """torch._dynamo's profiler adds one when it is imported: a second one would say all twice in the ranks."""
    for name in ("torch.distributed", "strobelight_function_profiler"):
        logger, handler = logging.getLogger(name), logging.StreamHandler(sys.stderr)
        logger.addHandler(handler)
        try:
            assert not [one for one in log_settings.current().handlers if one.logger == name]
        finally:
            logger.removeHandler(handler)


def test_warnings_that_are_errors_are_errors_in_ranks():
    def warn() -> None:
        warnings.warn("the batch is odd", UserWarning, stacklevel=1)

    launch(warn, 1)
    warnings.filterwarnings("error", "the batch")
    with pytest.raises(RankFailure, match="the batch is odd"):
        launch(warn, 2)


def test_the_first_filter_that_fits_decides_in_ranks_too(capfd):
    def warn() -> None:
        warnings.warn("the batch is odd", UserWarning, stacklevel=1)
        warnings.warn("the rate is high", UserWarning, stacklevel=1)

    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "the batch")
    with pytest.raises(RankFailure, match="the rate is high"):
        launch(warn, 1)
    warnings.simplefilter("ignore")
    launch(warn, 1)
    said = capfd.readouterr()
    assert "odd" not in said.out + said.err


def test_a_rank_that_has_its_own_handler_gets_no_second_one():
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, force=True)
    settings = log_settings.current()
    handlers = list(logging.getLogger().handlers)
    log_settings.adopt(settings)
    assert logging.getLogger().handlers == handlers


def test_a_category_of_a_module_that_ranks_have_not_loaded_is_left_out():
    """A category of matplotlib's is left out where that is not loaded, and not imported by each rank."""

    class Odd(UserWarning):
        pass

    Odd.__module__ = "a_package_that_is_not_loaded"
    warnings.simplefilter("error", Odd)
    (loaded,) = launch(lambda: "matplotlib" in sys.modules, 1)
    assert not loaded
