"""The role that writes rows which others have made: no superuser (``095_apply_role.sql``).

Where rows are written, code of users may run: what evaluates it must not have logged in as a
superuser, since code can undo SET ROLE.
"""

from importlib import resources

from pgherd_sidecar.pg import trusted

APPLY_ROLE = "pgherd_apply"
OPTIONS = trusted.options({"session_replication_role": "replica"})
"""How sessions begin that fill a server: no triggers, no settings of the database's owner."""


def script() -> str:
    """Return the commands that make the role, or make it again as it has to be."""
    return (resources.files("pgherd_sidecar.pg") / "sql" / "095_apply_role.sql").read_text()
