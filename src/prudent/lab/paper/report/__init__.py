"""The report: the paper's tables beside ours, as text, Markdown and one HTML file.

Data flow: rows of the results (`results`), cells that average them over seeds (`cells`), summaries
of the cells (`summary`, `frontier`), a page of plain blocks (`page`), and its renderings (`html`,
`markdown`, `terminal`). Accuracies come only from the results, never from the code.
"""
