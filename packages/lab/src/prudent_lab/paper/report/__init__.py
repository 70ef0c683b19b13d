"""The report: the paper's tables beside ours, as text, Markdown and one HTML file.

Data flow: rows of the results (`paper.results`), the paper's numbers and attacks beside them
(`comparison`, `frontier`), tables of their cells (`tables`), and a page around them (`page`).
Accuracies come only from the results, never from the code.
"""
