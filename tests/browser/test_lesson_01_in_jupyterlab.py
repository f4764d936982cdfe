"""Lesson 01 as a person sees it: opened in JupyterLab in a headless Chromium, all cells run, a control moved.

What counts is asked of JupyterLab's own application object (kernel status, execution counts, outputs, widgets'
pictures), not guessed from the page: JupyterLab takes cells that are out of sight off the page.
Screenshots go to build/browser/, for a look at both themes.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.timeout(420)]

LESSON = "01-why-distributed.ipynb"
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

# `app` is on the page because of --LabApp.expose_app_in_browser.
OPEN = """async path => {
    const app = window.jupyterapp;
    await app.restored;
    const panel = await app.commands.execute('docmanager:open', {path, factory: 'Notebook'});
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
    return {status: panel.sessionContext.session?.kernel?.status, cells: found};
}"""
PICTURE = """([id]) => {
    const cells = window.jupyterapp.shell.currentWidget.content.model.cells;
    for (let i = 0; i < cells.length; i++)
        if (cells.get(i).id === id)
            return cells.get(i).outputs.toJSON().map(o => (o.data || {})['image/png'] || '').join('');
}"""
SHOW = """async ([id]) => {
    const notebook = window.jupyterapp.shell.currentWidget.content;
    const index = notebook.widgets.findIndex(cell => cell.model.id === id);
    notebook.activeCellIndex = index;
    await notebook.scrollToItem(index, 'start');
    return index;
}"""


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """A JupyterLab of its own: a copy of the lesson, a free port, a token, no settings of the user's."""
    home = tmp_path_factory.mktemp("lab")
    work = home / "work"
    work.mkdir()
    shutil.copy(root / "lessons" / LESSON, work / LESSON)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    token = secrets.token_hex(16)
    environment = {**os.environ, "PYTHONPATH": str(root), "JUPYTER_TOKEN": token}
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        environment[name] = str(home / name.lower())
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        f"--ServerApp.root_dir={work}",
    ]
    command += ["--ServerApp.port_retries=0", "--LabApp.expose_app_in_browser=True"]
    command += [
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    log = (home / "server.log").open("w")
    process = subprocess.Popen(
        command, cwd=work, env=environment, stdout=log, stderr=log, start_new_session=True
    )
    address = f"http://127.0.0.1:{port}"
    try:
        _wait_for(
            lambda: _answers(f"{address}/api/status?token={token}"), 60, "JupyterLab to start"
        )
        yield {"address": address, "token": token}
    finally:
        _end_kernels(address, token)
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        log.close()


@pytest.fixture(scope="module")
def page(
    server: dict[str, Any], chromium: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A page of a fresh browser with JupyterLab in it."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        context = playwright.chromium.launch_persistent_context(
            str(tmp_path_factory.mktemp("profile")),
            executable_path=chromium,
            args=FLAGS,
            viewport={"width": 1280, "height": 1100},
        )
        try:
            page = context.pages[0] if context.pages else context.new_page()
            page.set_default_timeout(60_000)
            page.goto(f"{server['address']}/lab?token={server['token']}")
            page.wait_for_function("() => window.jupyterapp !== undefined", timeout=60_000)
            yield page
        finally:
            context.close()


def test_every_cell_runs_and_a_control_changes_the_picture(page: Any, root: Path) -> None:
    shots = root / "build" / "browser"
    shots.mkdir(parents=True, exist_ok=True)
    written = json.loads((root / "lessons" / LESSON).read_text(encoding="utf-8"))
    code = [
        c for c in written["cells"] if c["cell_type"] == "code" and "".join(c["source"]).strip()
    ]

    assert page.evaluate(OPEN, LESSON) == len(written["cells"])
    page.evaluate("() => window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs')")
    assert not any(cell["count"] or cell["outputs"] for cell in page.evaluate(CURRENT)["cells"])
    _wait_for(lambda: page.evaluate(CURRENT)["status"] == "idle", 60, "the kernel to be idle")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")

    def finished() -> bool:
        now = page.evaluate(CURRENT)
        failed = [
            o for cell in now["cells"] for o in cell["outputs"] if o["output_type"] == "error"
        ]
        assert not failed, f"a cell failed: {failed[0]['ename']}: {failed[0]['evalue']}"
        return now["status"] == "idle" and all(cell["count"] for cell in now["cells"])

    _wait_for(finished, 300, "all cells to run")
    cells = page.evaluate(CURRENT)["cells"]
    assert [cell["count"] for cell in cells] == list(range(1, len(code) + 1))
    assert [cell["id"] for cell in cells] == [cell["id"] for cell in code]
    with_output = {cell["id"] for cell in code if cell["outputs"]}
    assert {cell["id"] for cell in cells if cell["outputs"]} == with_output

    page.evaluate(SHOW, ["memory-wall"])
    slider = page.locator(
        ".jp-Cell.jp-mod-active .noUi-handle, .jp-Cell.jp-mod-active [role=slider]"
    ).first
    slider.wait_for()
    before = page.evaluate(PICTURE, ["memory-wall"])
    assert before, "the cell of the memory wall shows no picture"
    page.screenshot(path=shots / "lesson-01-light.png")
    slider.focus()
    page.keyboard.press("End")  # the largest micro-batch

    def redrawn() -> bool:
        idle = page.evaluate(CURRENT)["status"] == "idle"
        return idle and page.evaluate(PICTURE, ["memory-wall"]) not in ("", before)

    _wait_for(redrawn, 60, "the picture to change")
    page.screenshot(path=shots / "lesson-01-light-moved.png")

    page.evaluate(
        "() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})"
    )
    page.wait_for_selector("body[data-jp-theme-light=false]", state="attached")
    page.evaluate(SHOW, ["strong-table"])
    page.wait_for_timeout(500)
    page.screenshot(path=shots / "lesson-01-dark.png")


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


def _wait_for(condition: Any, seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(0.25)
