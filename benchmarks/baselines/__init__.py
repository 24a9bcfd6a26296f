"""Planners of published papers, for comparison only: nothing of the product imports them.

Written from descriptions of the algorithms (sections named in each module), not from their authors' code. Pure
functions: the same question gives the same answer.
"""
