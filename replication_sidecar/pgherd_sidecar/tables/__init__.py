"""Rows on their way from one database into another: `pgherd import`, and subscriptions.

In come row changes of whole transactions; out go few statements that set rows write. The room
promises that these give what the changes give one by one. It knows neither end.
"""
