"""The explorer: a page on this machine to look around in a run, and to ask about new pictures.

`exploration.py` opens the run, `scoring.py` keeps its decompositions, `questions.py` does what takes long, `answers.py`
says what was found, and `app.py` serves it to the page.
"""
