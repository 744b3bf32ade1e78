"""What the pages are made of, in the browser: `morph`, and how numbers, bytes and JSON are written."""

from __future__ import annotations

from typing import Any

from tests.browser.kit import Visitor, desktop_only

pytestmark = desktop_only


def evaluated(visitor: Visitor, body: str) -> Any:
    """What a function with this body returns; it has the modules, and an empty `box` in the page."""
    page = visitor.go("/nowhere")
    return page.evaluate(
        f"""async () => {{
          const {{ fill, h, keep, morph }} = await import("/ui/lib/dom.js");
          const format = await import("/ui/lib/format.js");
          const payload = await import("/ui/lib/payload.js");
          const {{ History }} = await import("/ui/pages/overview.js");
          const box = document.createElement("div");
          document.querySelector("main").append(box);
          const rows = (names) => names.map((name) => h("button", {{ type: "button", "data-key": name }}, name));
          {body}
        }}"""
    )


def test_rows_that_come_go_and_change_places_keep_the_focus(visitor: Visitor) -> None:
    seen = evaluated(
        visitor,
        """
        const seen = [];
        const look = (names) => {
          morph(box, rows(names));
          seen.push([[...box.children].map((row) => row.textContent).join(""), document.activeElement.textContent]);
        };
        look(["a", "b", "c", "d"]);
        box.children[2].focus();
        for (const names of ["cd", "acd", "dcab", "bc", "c"]) look([...names]);
        return seen.slice(1);
        """,
    )
    assert seen == [["cd", "c"], ["acd", "c"], ["dcab", "c"], ["bc", "c"], ["c", "c"]]


def test_what_somebody_types_is_theirs(visitor: Visitor) -> None:
    seen = evaluated(
        visitor,
        """
        const draw = (value) => morph(box, h("input", { "aria-label": "x", value }), h("p", {}, value));
        draw("first");
        const input = box.querySelector("input");
        input.focus();
        input.value = "typed";
        draw("second");
        const during = input.value;
        input.blur();
        draw("third");
        return [during, input.value, box.querySelector("p").textContent, box.querySelector("input") === input];
        """,
    )
    assert seen == ["typed", "third", "third", True]


def test_a_kept_element_stays_the_same_wherever_it_stands(visitor: Visitor) -> None:
    seen = evaluated(
        visitor,
        """
        const form = h("form", {}, h("input", { "aria-label": "x" }));
        const input = form.firstChild;
        morph(box, h("p", {}, "1"), h("section", { "data-key": "s" }, keep(form)));
        input.focus();
        input.value = "typed";
        const before = h("b", {}, "before");
        morph(box, h("p", {}, "2"), h("p", {}, "new"), h("section", { "data-key": "s" }, before, keep(form)));
        const first = [document.activeElement === input, box.querySelectorAll("form").length, form.parentNode.tagName];
        morph(box, h("p", {}, "3"));
        morph(box, keep(form), h("p", {}, "4"));
        return [...first, input.value, box.firstChild === form, box.textContent];
        """,
    )
    assert seen == [True, 1, "SECTION", "typed", True, "4"]


def test_handlers_and_styles_follow_without_breaking_the_policy(visitor: Visitor) -> None:
    seen = evaluated(
        visitor,
        """
        const told = [];
        const draw = (n) => morph(box, h("button", { onclick: () => told.push(n), style: { width: `${n}px` } }, "x"));
        draw(1);
        draw(2);
        box.firstChild.click();
        const width = box.firstChild.style.width;
        morph(box, h("button", {}, "x"));
        box.firstChild.click();
        return [told, width, box.firstChild.style.width];
        """,
    )
    assert seen == [[2], "2px", ""]


def test_text_is_never_markup(visitor: Visitor) -> None:
    seen = evaluated(
        visitor, "morph(box, h('p', {}, '<img src=x onerror=alert(1)>')); return box.querySelectorAll('img').length;"
    )
    assert seen == 0


def test_the_history_is_bounded_however_long_the_page_is_open(visitor: Visitor) -> None:
    seen = evaluated(
        visitor,
        """
        const history = new History();
        history.replace({ times_ms: [0, 5000], series: { publish: [1, 2] } });
        for (let i = 2; i < 5000; i += 1) history.add({ time_ms: i * 5000, values: { publish: i } });
        history.add({ time_ms: 10, values: { publish: 0 } });
        const { publish } = history.series;
        return [history.times.length, publish.length, history.times.at(-1), publish.at(-1)];
        """,
    )
    assert seen == [721, 721, 4999 * 5000, 4999]


def test_numbers_sizes_times_and_payloads_are_written_for_people(visitor: Visitor) -> None:
    seen = evaluated(
        visitor,
        """
        const { bytes, count, duration, percent, rate, several, short } = format;
        return [count(1234567), short(950), short(12345), short(4.25e6), rate(0.5), rate(null), bytes(1536), bytes(0),
          duration(850), duration(90000), duration(5 * 3600e3), percent(0.051),
          several(1, "queue"), several(2, "queue"),
          payload.pretty('{"n":12345678901234567890,"x":1.50}'), payload.hex(new Uint8Array([72, 105, 0])),
          payload.glance({ payload: "" }), payload.messageLink({ source: "a/b", partition: 2, offset: 7, id: "own" }),
          payload.messageLink({ queue: "q", id: "q#1" })];
        """,
    )
    assert seen == [
        "1\u202f234\u202f567",
        "950",
        "12.3 K",
        "4.3 M",
        "0.5/s",
        "–",
        "1.5 KiB",
        "0 B",
        "850 ms",
        "90 s",
        "5.0 h",
        "5.1 %",
        "1 queue",
        "2 queues",
        '{\n  "n": 12345678901234567890,\n  "x": 1.50\n}',
        f"000000  {'48 69 00':<47}  Hi·",
        "(empty)",
        "#/messages/a%2Fb-2%407",
        "#/messages/q%231",
    ]
