"""A real JupyterLab with a page of a fresh headless Chromium on it, and what tests ask of the two.

What counts is asked of JupyterLab's own application object (kernel status, execution counts, outputs), not
guessed from the page: JupyterLab takes cells that are out of sight off the page.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Seconds for JupyterLab, a page or a kernel to come up. At a load of 35 it took more than 60.
PATIENCE = 240

OPEN = """async ([path, kernel]) => {
    const app = window.jupyterapp;
    await app.restored;
    const preference = kernel ? {} : {kernelPreference: {shouldStart: false}};
    const panel = await app.commands.execute(
        'docmanager:open', {path, factory: 'Notebook', ...preference});
    await panel.context.ready;
    await panel.sessionContext.ready;
    await panel.revealed;
    return panel.content.widgets.length;
}"""
CURRENT = """() => {
    const panel = window.jupyterapp.shell.currentWidget;
    const cells = panel.content.model.cells;
    const found = [];
    for (let i = 0; i < cells.length; i++) {
        const cell = cells.get(i);
        if (cell.type === 'code' && cell.sharedModel.getSource().trim())
            found.push({id: cell.id, count: cell.executionCount, outputs: cell.outputs.toJSON()});
    }
    return {
        status: panel.sessionContext.session?.kernel?.status,
        language: panel.content.model.getMetadata('language_info'),
        dirty: panel.content.model.dirty,
        path: panel.context.path,
        cells: found,
    };
}"""
SHOW = """async id => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const index = notebook.widgets.findIndex(cell => cell.model.id === id);
    notebook.activeCellIndex = index;
    await notebook.scrollToItem(index, 'start');
    return index;
}"""
CLOSE = """async () => {
    const panel = window.jupyterapp.shell.currentWidget;
    await panel.sessionContext.shutdown();
    panel.dispose();
}"""


class JupyterLab:
    """A page with JupyterLab on it. `home` is the folder where its file browser begins."""

    def __init__(self, page: Any, home: Path):
        self.page = page
        self.home = home

    def open(self, path: str, *, kernel: bool = True) -> int:
        """Open a notebook, with its kernel unless told otherwise; the number of its cells."""
        return self.page.evaluate(OPEN, [path, kernel])

    def current(self) -> dict[str, Any]:
        """Of the notebook in front: kernel status, language, dirty, path, and its code cells with their outputs."""
        return self.page.evaluate(CURRENT)

    def do(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        """Run one of JupyterLab's commands, without waiting for its end."""
        self.page.evaluate(
            "([name, arguments]) => { window.jupyterapp.commands.execute(name, arguments) }",
            [command, arguments or {}],
        )

    def show(self, cell: str) -> int:
        """Scroll to the cell with this id and make it the active one."""
        return self.page.evaluate(SHOW, cell)

    def save_by_keyboard(self) -> None:
        """Ctrl-S in the notebook in front, and wait until the server has written the file."""
        path = re.escape(f"/api/contents/{self.current()['path']}")
        with self.page.expect_response(
            lambda answer: answer.request.method == "PUT" and re.search(path, answer.url)
        ) as saved:
            self.page.keyboard.press("Control+s")
        assert saved.value.status in (200, 201)

    def save(self) -> None:
        """Save the notebook in front, changed or not."""
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.context.save()")

    def close(self) -> None:
        """Close the notebook in front with its kernel."""
        self.page.evaluate(CLOSE)

    def screenshot(self, name: str) -> None:
        """Into build/browser/, for a look."""
        shots = Path(__file__).resolve().parents[2] / "build" / "browser"
        shots.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=shots / name)


@pytest.fixture(scope="module")
def jupyterlab(
    root: Path, chromium: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., JupyterLab]]:
    """A function that starts a JupyterLab: a free port, a token, no settings of the user's, a window of `size`.

    course:  `dtcourse lab` opens it, on the course in that folder; `words` are its arguments
    folder:  a plain `jupyter lab` opens it, with that folder as its home
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright, contextlib.ExitStack() as stack:
        browser = playwright.chromium

        def start(
            *,
            course: Path | None = None,
            words: tuple[str, ...] = (),
            folder: Path | None = None,
            size: tuple[int, int] = (1280, 1100),
        ) -> JupyterLab:
            home = course or folder
            assert home
            command = [sys.executable, "-m", "jupyterlab", "--allow-root"]
            command += [f"--ServerApp.root_dir={home}"]
            if course:
                command = [sys.executable, "-m", "dtcourse.cli", "lab", *words, "--"]
            scratch = tmp_path_factory.mktemp("lab")
            server = stack.enter_context(served(command, home, root, scratch))
            profile = scratch / "profile"
            page = stack.enter_context(page_of(server, browser, chromium, profile, size))
            return JupyterLab(page, home)

        yield start


@contextlib.contextmanager
def served(command: list[str], home: Path, root: Path, scratch: Path) -> Iterator[dict[str, str]]:
    """JupyterLab's server, until the end of the block: its address and what it writes into its log."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    environment = {**os.environ, "PYTHONPATH": str(root), "JUPYTER_TOKEN": token}
    environment["DTCOURSE_HOME"] = str(home)
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        environment[name] = str(scratch / name.lower())
    command = [
        *command,
        "--no-browser",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--LabApp.expose_app_in_browser=True",  # so that `window.jupyterapp` is there
    ]
    log = scratch / "server.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=home,
            env=environment,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        address = f"http://127.0.0.1:{port}"
        try:

            def up() -> bool:
                assert process.poll() is None, f"JupyterLab ended:\n{log.read_text()}"
                return _answers(f"{address}/api/status?token={token}")

            wait_for(up, PATIENCE, "JupyterLab to start")
            yield {"address": address, "token": token}
        finally:
            _end_kernels(address, token)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)


@contextlib.contextmanager
def page_of(
    server: dict[str, str], browser: Any, chromium: str, profile: Path, size: tuple[int, int]
) -> Iterator[Any]:
    """A page of a fresh browser with JupyterLab in it."""
    context = browser.launch_persistent_context(
        str(profile),
        executable_path=chromium,
        args=FLAGS,
        viewport={"width": size[0], "height": size[1]},
    )
    try:
        page = context.pages[0] if context.pages else context.new_page()
        page.set_default_timeout(PATIENCE * 1000)
        page.goto(f"{server['address']}/lab?token={server['token']}")
        page.wait_for_function("() => window.jupyterapp !== undefined")
        yield page
    finally:
        context.close()


@pytest.fixture(scope="session")
def until() -> Callable[..., None]:
    """A function that waits until a condition holds: until(condition, seconds, "what")."""
    return wait_for


def wait_for(condition: Callable[[], Any], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.25)


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def _end_kernels(address: str, token: str) -> None:
    """Shut kernels down by the server's own means; each runs in a process group of its own."""
    headers = {"Authorization": f"token {token}"}
    try:
        request = urllib.request.Request(f"{address}/api/kernels", headers=headers)
        with urllib.request.urlopen(request, timeout=10) as answer:
            kernels = json.load(answer)
        for kernel in kernels:
            request = urllib.request.Request(
                f"{address}/api/kernels/{kernel['id']}", headers=headers, method="DELETE"
            )
            urllib.request.urlopen(request, timeout=20).close()
    except OSError:  # the server is gone already: what it left is found by the suite's own check
        return
