"""The page in a browser: what it asks, shows and says, for eyes, keyboards, and those who attack it."""

import json
import shlex

import pytest

from official.serving.server.versions import Served, State

ANSWER, FILL, CLASSIFY, EMBED = (f"#panel-{name}" for name in ("answer", "fill_mask", "classify", "embed"))
SEND = "[type=submit]"


def submit(page, method: str, wait_for: str = "", **texts: str) -> None:
    """Fills fields of the form of a method, and sends it. Waits for what then is in its panel."""
    page.click(f"#tab-{method}")
    for name, text in texts.items():
        page.fill(f"#{method}-{name}", text)
    page.click(f"#panel-{method} {SEND}")
    if wait_for:
        page.wait_for_selector(f"#panel-{method} {wait_for}")


def ask(page, context: str, question: str, wait_for: str = "") -> None:
    submit(page, "answer", wait_for, context=context, question=question)


def focused(page) -> str:
    return page.evaluate("document.activeElement.id || document.activeElement.textContent")


def described(page, field: str) -> str:
    """Returns what a screen reader says of a field beside its label."""
    ids = (page.get_attribute(field, "aria-describedby") or "").split()
    return " ".join(page.text_content(f"#{each}") for each in ids)


def reply(page, status: int, body: str) -> None:
    """Lets predictions end in a status and a body."""
    page.unroute("**/*:predict")
    page.route("**/*:predict", lambda route: route.fulfill(status=status, body=body))


def test_the_answer_is_marked_in_its_context_and_its_call_is_shown(open_page, server):
    page = open_page()
    context = "🏛️ Old.\nThree earthquakes 😀 damaged it; Three earthquakes, it's said."
    ask(page, context, "What's it?")
    assert page.text_content(f"{ANSWER} mark") == "Three earthquakes" == page.text_content(f"{ANSWER} .big")
    assert page.text_content(f"{ANSWER} .passage") == context
    before = page.evaluate("document.querySelector('mark').previousSibling.textContent")
    assert before == "🏛️ Old.\n"  # places count code points, not UTF-16
    assert "93.7%" in page.text_content(f"{ANSWER} .result")
    asked = {"question": "What's it?", "context": context}
    assert page.asked == [{"signature_name": "answer", "instances": [asked]}]
    assert page.text_content("#said") == "Answer: Three earthquakes"
    program, flag, body, address = shlex.split(page.text_content(f"{ANSWER} pre"))
    assert (program, flag) == ("curl", "-d") and json.loads(body) == page.asked[0]
    assert address == f"http://127.0.0.1:{server.port}/v1/models/bert:predict"


def test_an_empty_field_is_told_where_it_is(open_page):
    page = open_page()
    ask(page, "A text.", "  ")
    assert described(page, "#answer-question") == "Write a question."
    assert page.get_attribute("#answer-question-error", "role") == "alert"
    assert page.get_attribute("#answer-question", "aria-invalid") == "true"
    assert focused(page) == "answer-question"
    page.keyboard.type("Who?")
    assert not described(page, "#answer-question")
    assert not page.get_attribute("#answer-question", "aria-invalid")
    ask(page, "", "")
    assert described(page, "#answer-context") and described(page, "#answer-question")
    assert focused(page) == "answer-context" and not page.asked


def test_texts_that_were_cut_are_told_beside_the_answer(open_page, model):
    """Also on a telephone, where they are named."""
    model.is_cut = lambda row: len(str(row)) > 90
    page, long = open_page(viewport={"width": 320, "height": 700}), "w" * 100
    ask(page, "Three earthquakes.", f"What {long}?")
    told = page.text_content(f"{ANSWER} .cut")
    assert told.startswith("The question is longer than the model takes")
    assert page.text_content("#said") == f"Answer: Three earthquakes {told}"
    submit(page, "embed", one="a", other=f"b\n{long}")
    assert page.text_content(f"{EMBED} .cut").startswith("1 of 3 texts is longer")
    assert "w" * 40 + "…" in page.text_content(f"{EMBED} .cut")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    ask(page, "Three earthquakes.", "What?")
    page.wait_for_selector(f"{ANSWER} .cut", state="detached")


def test_no_answer_is_said(open_page):
    page = open_page()
    ask(page, "A text.", "Who?", ".big:has-text('No answer')")
    assert page.query_selector("mark") is None


@pytest.mark.slow
def test_the_keyboard_is_enough(open_page):
    page = open_page()
    for expected in ("Skip to the form", "tab-answer", "The lighthouse", "Penicillin", "With emoji"):
        page.keyboard.press("Tab")
        assert focused(page) == expected
    page.keyboard.press("Tab")
    page.keyboard.type("Three earthquakes.")
    page.keyboard.press("Tab")
    page.keyboard.type("What?")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{ANSWER} mark")
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("End")
    page.keyboard.type(" Nothing more.")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f"{ANSWER} .passage:has-text('Nothing more.')")
    assert page.input_value("#answer-context") == "Three earthquakes. Nothing more."  # no new line
    page.focus("#tab-answer")
    for key, expected in [
        ("ArrowRight", "tab-fill_mask"),
        ("End", "tab-embed"),
        ("ArrowRight", "tab-answer"),
        ("ArrowLeft", "tab-embed"),
        ("Home", "tab-answer"),
    ]:
        page.keyboard.press(key)
        assert focused(page) == expected
        assert page.get_attribute(f"#{expected}", "aria-selected") == "true"
        assert page.locator("[role=tabpanel]:visible").get_attribute("aria-labelledby") == expected
        assert page.locator("[role=tab][tabindex='0']").count() == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [320, 390, 640, 1280])  # 640: 1,280 at 200 %
def test_nothing_scrolls_sideways(open_page, model, server, width):
    model.label = "LABEL_" + "x" * 120
    model.scores = {model.label: 0.5}
    server.server.versions.served.labels = [model.label, *(f"label {number}" for number in range(40))]
    page = open_page(viewport={"width": width, "height": 844})
    ask(page, "Three earthquakes " + "w" * 300, "q" * 200, "mark")
    page.click(f"{ANSWER} summary")
    for tab, panel in [("answer", ANSWER), ("fill_mask", FILL), ("classify", CLASSIFY), ("embed", EMBED)]:
        page.click(f"#tab-{tab}")
        if tab != "answer":
            page.click(f"{panel} .example >> nth=1")
            page.wait_for_selector(f"{panel} .rows")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, tab


@pytest.mark.slow
def test_texts_are_never_html(open_page, model):
    attack = "<script>window.hit = 1</script><img src=x onerror='window.hit = 1'>"
    model.words, model.label, model.scores = [(attack, 0.5)] * 5, attack, {attack: 0.5}
    page = open_page()
    ask(page, f"{attack} Three earthquakes {attack}", attack, "mark")
    assert attack in page.text_content(f"{ANSWER} .passage")
    submit(page, "fill_mask", "li", text=f"{attack} [MASK]")
    assert page.text_content(f"{FILL} li .word") == attack
    page.click("#tab-classify")
    page.click(f"{CLASSIFY} .example")
    page.wait_for_selector(f"{CLASSIFY} .big")
    assert page.text_content(f"{CLASSIFY} .big") == attack
    reply(page, 400, json.dumps({"error": attack}))
    page.click(f"{CLASSIFY} .example")
    page.wait_for_selector(f"{CLASSIFY} .error")
    assert page.text_content(f"{CLASSIFY} .error") == attack
    (said,) = page.complaints
    assert "status of 400" in said
    page.complaints.clear()
    assert page.evaluate("window.hit") is None and page.query_selector("main img, main script") is None


@pytest.mark.slow
def test_masks_are_filled(open_page):
    page = open_page()
    submit(page, "fill_mask", text="No mask.")
    assert "no [MASK]" in described(page, "#fill_mask-text")
    page.evaluate("document.getElementById('fill_mask-text').setSelectionRange(3, 7)")
    page.click("#insert")
    assert page.input_value("#fill_mask-text") == "No [MASK]." and focused(page) == "fill_mask-text"
    page.keyboard.type(" and")  # behind what was put in
    assert page.input_value("#fill_mask-text") == "No [MASK] and."
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(f"{FILL} li")
    assert page.text_content(f"{FILL} .passage") == "No france and."
    rows = page.locator(f"{FILL} li").all_text_contents()
    assert rows == ["france71.0%", "europe11.0%", "##land5.0%", "paris1.0%", "it0.1%"]
    widths = page.evaluate("Array.from(document.querySelectorAll('.bar span')).map((bar) => bar.style.width)")
    assert widths == ["71%", "11%", "5%", "1%", "0.1%"]


@pytest.mark.slow
def test_sentences_are_classified_and_compared(open_page, model):
    page = open_page()
    submit(page, "classify", ".big", sentence_a="A warm film.")
    assert page.text_content(f"{CLASSIFY} .big") == "positive"
    assert "99.8%" in page.text_content(f"{CLASSIFY} .rows")
    assert page.asked[-1]["instances"] == [{"sentence_a": "A warm film.", "sentence_b": ""}]
    model.label, model.scores = "1", {"0": 0.25, "1": 0.75}
    submit(page, "classify", ".big:has-text('Label 1')")
    model.label, model.scores = "threat", {"insult": 0.5, "threat": 0.96, "spam": 0.84}
    submit(page, "classify", ".big:has-text('threat')")
    rows = page.locator(f"{CLASSIFY} .rows li").all_inner_texts()
    assert [" ".join(row.split()) for row in rows] == ["threat 96.0%", "spam 84.0%", "insult 50.0%"]
    model.label, model.scores = "", {"x": 3.416, "y": -1.0}
    submit(page, "classify", ".rows:has-text('3.42'):has-text('-1.00')")
    model.scores = {"LABEL_0": 3.416}
    submit(page, "classify", ".big:has-text('3.42')")
    assert page.query_selector(f"{CLASSIFY} .rows") is None  # a score is no share of anything
    submit(page, "embed", ".big", one="a", other="ab")
    assert page.text_content(f"{EMBED} .big") == "0.98"  # 2.25 / sqrt(1.25 x 4.25)


@pytest.mark.slow
def test_what_the_model_cannot_do_is_said(open_page, model, server):
    server.server.versions.served = Served(1, model, ["fill_mask", "classify"])
    page = open_page()
    assert page.get_attribute("#tab-fill_mask", "aria-selected") == "true"  # the first that it can
    page.click("#tab-answer")
    assert "cannot answer questions" in page.text_content(f"{ANSWER} .cannot")
    assert page.is_visible(f"{ANSWER} .cannot") and not page.is_visible(f"{ANSWER} form")
    assert page.text_content("#tab-answer") == "Ask, not in this model"


@pytest.mark.slow
def test_waiting_is_shown_and_keeps_the_focus(open_page, model):
    model.gate.clear()
    page = open_page()
    ask(page, "Three earthquakes.", "What?")
    button = f"{ANSWER} {SEND}"
    assert page.get_attribute(f"{ANSWER} form", "aria-busy") == "true"
    assert page.get_attribute(button, "aria-disabled") == "true" and page.text_content(button) == "Asking…"
    page.locator(f"{ANSWER} .example >> nth=1").press("Enter")
    page.locator(button).press("Enter")  # neither asks anything more
    model.gate.set()
    page.wait_for_selector(f"{ANSWER} mark")
    assert len(page.asked) == 1 and focused(page) == "Ask"
    assert page.get_attribute(f"{ANSWER} form", "aria-busy") is None


@pytest.mark.slow
def test_errors_of_the_server_are_shown(open_page):
    page = open_page()
    for status, body, said in (
        (400, '{"error": "1 text to classify, expected 2."}', "1 text to classify, expected 2."),
        (503, "<html>proxy</html>", "The server answered with status 503, and nothing that can be read."),
        (200, "[]", "The server's answer has no predictions."),
        (200, '{"predictions": [{"label": 1}]}', "The server's answer is not what it should be."),
    ):
        reply(page, status, body)
        ask(page, "A text.", "Who?", f'.error[role=alert]:text-is("{said}")')
    page.complaints.clear()  # the browser's own line about the status, and ours about what was not understood
    page.unroute("**/*:predict")
    ask(page, "Three earthquakes.", "Who?", "mark")
    assert page.query_selector(f"{ANSWER} .error") is None
    # Longer than the server takes.
    submit(page, "embed", ".error[role=alert]", one="a", other="word7 word8 " * 20_000)
    (said,) = page.complaints
    assert "status of 4" in said
    page.complaints.clear()


@pytest.mark.slow
def test_no_answer_in_time_and_no_network_are_told_apart(open_page, model):
    model.gate.clear()
    page = open_page()
    page.clock.install()
    ask(page, "A text.", "Who?", "[aria-busy]")
    page.clock.fast_forward(61_000)
    page.wait_for_selector(f"{ANSWER} .error")
    assert "No answer within 60 seconds" in page.text_content(f"{ANSWER} .error")
    page.context.set_offline(True)
    ask(page, "A text.", "Who?", ".error:has-text('offline')")
    page.complaints.clear()  # net::ERR_INTERNET_DISCONNECTED


@pytest.mark.slow
def test_a_token_is_asked_for_and_kept_in_memory(open_page, server):
    server.server.token = b"s3cret"
    page = open_page(wait_for="#token:not([hidden])")
    assert focused(page) == "token-field" and page.query_selector("#token .error") is None
    for given, said in [("", "Write the token."), ("wrong", "The server does not take this token.")]:
        page.fill("#token-field", given)
        page.keyboard.press("Enter")
        page.wait_for_selector(f"#token .error:has-text('{said}')")
        assert said in described(page, "#token-field") and focused(page) == "token-field"
    page.fill("#token-field", "s3cret")
    page.keyboard.press("Enter")
    page.wait_for_selector("[role=tab]")
    assert not page.is_visible("#token") and focused(page) == "panels"
    server.server.token = b"another"  # it was changed while the page was open
    ask(page, "Three earthquakes.", "What?")
    page.wait_for_selector("#token:not([hidden])")
    page.fill("#token-field", "another")
    page.keyboard.press("Enter")
    page.wait_for_selector(f"{ANSWER} mark")  # what was asked is asked again
    assert focused(page) == "Ask"
    stored = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
    assert stored == [0, 0, ""] and "another" not in page.content()
    page.complaints.clear()  # the browser's own lines about 401


@pytest.mark.slow
def test_a_server_that_is_not_ready_is_tried_again(open_page):
    page = open_page(wait_for="#trouble:not([hidden])", metadata='{"metadata": {}}')
    assert "no signatures" in page.text_content("#trouble-text") and not page.is_visible("#tabs")
    page.unroute("**/metadata")
    page.click("#again")
    page.wait_for_selector("[role=tab]")
    assert not page.is_visible("#trouble") and page.text_content("#about") == "Version 1"


def test_a_model_that_loads_is_waited_for(open_page, server):
    versions = server.server.versions
    served, versions.served, versions.states[1] = versions.served, None, State("LOADING")
    served.labels = ["negative", "positive", "1"]
    page = open_page(wait_for="#loading:not([hidden])")
    page.wait_for_selector("#loading-text:has-text('Version 1 is being loaded.')")
    assert "The model is loading" in page.text_content("#loading[role=status]")
    assert not page.is_visible("#tabs") and not page.is_visible("#trouble")
    versions.served, versions.states[1] = served, State("AVAILABLE")
    page.wait_for_selector("[role=tab]")
    assert not page.is_visible("#loading") and page.text_content("#about") == "Version 1"
    page.click("#tab-classify")
    assert page.text_content("#classify-labels") == "Labels: negative, positive, Label 1."
    page.complaints.clear()  # the browser's own line about 503
