"""Tables as HTML."""

from tinyinfer.figures.tables import Table


def test_heads_are_marked_and_texts_are_shown_as_they_are():
    table = Table("model", ["a < b", "c"], {"one & two": ["1", "<b>2</b>"]})
    assert table._repr_html_() == (
        '<table class="table">\n'
        '<thead><tr><th scope="col">model</th><th scope="col">a &lt; b</th><th scope="col">c</th></tr></thead>\n'
        '<tbody>\n<tr><th scope="row">one &amp; two</th><td>1</td><td>&lt;b&gt;2&lt;/b&gt;</td></tr>\n</tbody></table>'
    )
    assert repr(table) == "<Table of 1 rows and 2 columns>"
