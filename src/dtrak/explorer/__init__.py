"""The explorer: a local web server and a page that shows the scores of a run or asks an index, and takes new pictures.

`exploration.py` opens a run and keeps its scores for any λ; `run_pages.py` and `index_pages.py` answer the page's
requests, `pages.py` has what both share, and `work_queue.py` does long work in the background.
"""
