"""Markdown as a page shows it."""

from __future__ import annotations

from transnormer.report.markdown import to_html


def test_a_table_scrolls_in_its_own_box_and_has_heads() -> None:
    html = to_html("| a | b |\n|---|---|\n| **1** | 2 |\n")
    assert html.startswith('<div class="scroll" tabindex="0"><table>')
    assert '<th scope="col">a</th>' in html
    assert '<th scope="row"><strong>1</strong></th>\n<td>2</td>' in html


def test_links_to_files_and_images_are_left_out_and_pages_stay() -> None:
    html = to_html("see [how](evaluation.md), [there](lra.html#tables) ![plot](../results/x.svg) [this](http://a.b)")
    assert html == '<p>see how, <a href="lra.html#tables">there</a>  this</p>\n'


def test_html_is_text() -> None:
    assert to_html("<script>alert(1)</script> & <of>") == (
        "<p>&lt;script&gt;alert(1)&lt;/script&gt; &amp; &lt;of&gt;</p>\n"
    )
