"""Runs the case files of any folder and tells what was observed. It compares nothing and knows no expected answer.

    python -m tests.cases DIR --json        (from the root of the repository)

The prefix of a file's name says which part of the pipeline it is for, the keys inside say what to do.
"""
