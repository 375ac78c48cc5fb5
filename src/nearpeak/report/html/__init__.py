"""One self-contained HTML file: charts drawn here as SVG, a page that needs no network, a little script for hovering.

    markup.py     elements; everything that is not markup of ours is escaped
    decimate.py   a million points to as many as there are pixels, peaks kept
    axes.py       round numbers for axes, figures as text
    charts.py     lines with bands, stacked areas
    bars.py       stacked bars with a legend
    lanes.py      timelines, decimated to the pixel
    treemap.py    nested rectangles
    blocks.py     tables, definitions, key figures, finding cards
    page.py       the page around them
    run_page.py   the page of a recorded run

Colours are named by what they show (`input`, `forward`) or by number (`s1` to `s8`); `style.css` gives each two shades,
for light and for dark.
"""
