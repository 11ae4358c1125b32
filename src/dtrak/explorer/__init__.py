"""The explorer: a local web server and a page that shows the scores of a run, and scores new pictures.

`exploration.py` opens the run, `scoring.py` keeps its decompositions in memory, `work_queue.py` does long work in the
background, `responses.py` makes the JSON and CSV of the answers, and `app.py` serves them to the page.
"""
