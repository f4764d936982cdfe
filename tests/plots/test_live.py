"""The live view: what it shows of messages, and that it changes in place in a notebook."""

import nbformat
from nbclient import NotebookClient

from dtcourse import plots


def message(steps=3, final=True, **more):
    parts = {"data": 0.1, "compute": 0.6, "communication": 0.2, "queueing": 0.1}
    return {
        "monitor": {
            "steps": steps, "total": 10, "final": final, "recent": 2, "logged": {"loss": 0.25},
            "seconds": 1.0, "samples": 50, "tokens": 0, **parts, **more,
        }
    }  # fmt: skip


def test_ranks_add_up_and_bars_fill_their_row(monkeypatch):
    view = plots.live_monitor()
    monkeypatch.setattr(view, "_show", lambda: None)
    view(0, message())
    view(1, message(samples=30, tokens=400))
    assert view.samples_per_second == 80
    assert view.tokens_per_second == 400
    page = view._repr_html_()
    for text in ("80 samples/s", "400 tokens/s", "rank 1", "step 3 of 10", "loss 0.25", "500.0 ms a step"):  # fmt: skip
        assert text in page
    assert page.count("width:60.0%") == 2
    assert repr(view) == "Live monitor: 2 ranks, 3 steps"


def test_other_messages_go_where_they_were_meant_to():
    others = []
    view = plots.live_monitor(otherwise=lambda *what: others.append(what))
    view(2, "hello")
    assert others == [(2, "hello")]
    assert not view.ranks


def test_in_a_notebook_one_output_is_updated_in_place():
    code = """
from dtcourse import launch, plots
def train():
    import time
    from dtcourse.profiling import Monitor
    monitor = Monitor(0)
    for _ in monitor.steps([[0]] * 4, samples=lambda _: 1):
        time.sleep(0.25)
run = launch(train, 2, on_message=plots.live_monitor())
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    updates = []
    client = NotebookClient(notebook, timeout=240)
    original = client.process_message

    def spy(msg, *rest):
        updates.append(msg["msg_type"])
        return original(msg, *rest)

    client.process_message = spy
    client.execute()
    (output,) = notebook.cells[0].outputs
    assert output["data"]["text/plain"] == "Live monitor: 2 ranks, 4 steps"
    assert "step 4 of 4" in output["data"]["text/html"]
    assert updates.count("update_display_data") >= 3
