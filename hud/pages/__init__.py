"""The pages: a folder each, whose query reads the page in a fixed number of SQL statements.

SQL is written out where the ORM cannot express it, as for the latest measurement of each of many series.
"""
