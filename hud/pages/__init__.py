"""Reads, one file and one function per page, each a fixed number of SQL statements.

Pages read and never compute history. Where the ORM cannot say it (the latest measurement of each of many
series, by one index look-up a series) the SQL stands in the file.
"""
