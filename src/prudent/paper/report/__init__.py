"""From results to pages: the paper's tables beside ours, as text, Markdown and one HTML file.

The way of a number: a row of the results (`results`), a cell over its seeds (`cells`), what the
cells come to (`summary`, `frontier`), a page of plain blocks (`content`), and one of its renderings
(`html`, `markdown`, `terminal`). No accuracy is written anywhere but in the results.
"""
