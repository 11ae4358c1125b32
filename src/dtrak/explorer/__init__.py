"""The explorer: a local web server and a page that shows the scores of a run or asks an index, and takes new pictures.

`exploration.py` opens a run, `scoring.py` keeps its decompositions in memory, `responses.py` makes the JSON and CSV of
the answers, and `app.py` serves them to the page. `indexed.py` opens an index, and `index_app.py` serves it. `pages.py`
has what both share, and `work_queue.py` does long work in the background.
"""
