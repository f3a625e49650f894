"""The page asks `bert serve` with a small model of its own: what it shows is what the model answers."""

import pytest

from official import inference
from tests.serving.server.servers import running, write_model

CONTEXT = "🎈 word7 word8 . 🏛️ word9 word10 . word11 word12"


@pytest.mark.slow
def test_the_page_shows_what_the_model_answers(tmp_path, open_page):
    model = inference.load(write_model(tmp_path / "1", "answer"))
    with running(tmp_path) as server:
        ask_both(open_page(address=f"http://127.0.0.1:{server.port}/"), model)


def ask_both(page, model) -> None:
    assert page.text_content("#about") == "Version 1"
    page.fill("#answer-context", CONTEXT)
    page.fill("#answer-question", "word7 ?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#panel-answer .big")
    expected = model.answer("word7 ?", CONTEXT)
    assert page.text_content("mark") == page.text_content("#panel-answer .big") == expected.text
    before = page.evaluate("document.querySelector('mark').previousSibling?.textContent || ''")
    assert before == CONTEXT[: expected.start]
    assert f"{expected.probability:.1%}" in page.text_content("#panel-answer .rows")
    page.fill("#answer-question", "")
    page.keyboard.press("Enter")
    assert page.text_content("#answer-question-error[role=alert]") == "Write a question."
    page.click("#tab-fill_mask")
    assert page.is_visible("#panel-fill_mask .cannot")
    page.click("#tab-embed")
    page.fill("#embed-one", "word7 word8")
    page.fill("#embed-other", "word7 word8")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#panel-embed .big")
    assert page.text_content("#panel-embed .big") == "1.00"
    page.fill("#embed-other", "word7 word8 " * 20_000)
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#panel-embed .error[role=alert]")  # longer than the server takes
    (said,) = page.complaints
    assert "status of 4" in said
    page.complaints.clear()
