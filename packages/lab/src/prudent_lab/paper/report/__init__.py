"""The report: the paper's tables beside ours, as text, Markdown and one HTML file.

Data flow: rows of the results (`results`), cells that average them over seeds (`cells`,
`frontier`), tables of the cells (`grids`), and a page around them (`page`). Accuracies come only
from the results, never from the code.
"""
