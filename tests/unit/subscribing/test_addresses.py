"""Connection strings of the admin API: a server elsewhere, and nothing of the member's machine."""

import pytest
from pgherd_sidecar.client.errors import HerdError
from pgherd_sidecar.subscribing.ordering.addresses import require_elsewhere
from pgherd_sidecar.subscribing.state import connections
from pgherd_sidecar.subscribing.state.errors import StoppedError


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://report:secret@warehouse/shop",
        "postgresql://report:p%40ss%2Fword@warehouse:5433/shop?sslmode=require",
        "postgresql://report@a:1,b:2,c/shop",
        "postgresql://report@a,b/shop?target_session_attrs=read-write&connect_timeout=3",
        "postgresql://report@[2001:db8::1]:5432,192.0.2.1/shop",
        "host=warehouse password='it\\'s @ secret' dbname=shop",
        "host=west_1.example.com sslmode=verify-full sslrootcert=system",
        "hostaddr=192.0.2.1 dbname=odd@name",
        "host=warehouse hostaddr=fe80::1%eth0 keepalives_idle=3 application_name=x",
    ],
)
def test_a_connection_string_with_a_host_is_taken(dsn: str) -> None:
    require_elsewhere(dsn)


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://report:se@cret@warehouse/shop",  # the host would be cret@warehouse
        "postgresql://report:se/cret@warehouse/shop",  # the port se, the database cret@...
        "postgresql://report:1/cret@warehouse",
        "postgresql:///shop",
        "dbname=shop password=cret",
        "host=warehouse cret",
        "host=warehouse port=cret",
        "host='ware house cret'",
        "hostaddr=cret",
    ],
)
def test_one_in_which_a_password_is_cut_is_refused_without_a_word_of_it(dsn: str) -> None:
    with pytest.raises(HerdError, match="the connection string") as error:
        require_elsewhere(dsn)
    assert "cret" not in str(error.value)


@pytest.mark.parametrize(
    "dsn",
    [
        "host=/run/pgherd/server user=postgres dbname=postgres",
        "host=warehouse,/run/pgherd/server user=postgres",
        "host=@abstract user=postgres",
        "postgresql://postgres@%2Frun%2Fpgherd/postgres",
        "postgresql://postgres@warehouse,%2frun/postgres",
        "postgresql://postgres@warehouse/postgres?host=/run/pgherd",
        "postgresql://postgres@warehouse/postgres?host=a,%2Frun",
        "host=warehouse, user=postgres",  # libpq's default for one that is empty is a socket
        "host=warehouse,,other user=postgres",
        "host=/run/pgherd hostaddr=192.0.2.1",
        "host=' /run/pgherd'",
        "hostaddr=/run/pgherd",
        "hostaddr=192.0.2.1,",
        "hostaddr=warehouse",
        "host='' hostaddr='' dbname=shop",
    ],
)
def test_a_socket_of_the_member_is_no_host(dsn: str) -> None:
    with pytest.raises(HerdError, match="host name or address"):
        require_elsewhere(dsn)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ("passfile=/etc/pgpass", "passfile"),
        ("sslkey=/etc/tls.key sslcert=/etc/tls.crt", "sslcert, sslkey"),
        ("sslrootcert=/etc/ca.crt", "sslrootcert"),
        ("sslcrl=/etc/crl", "sslcrl"),
        ("service=warehouse", "service"),
        ("options='-c role=postgres'", "options"),
        ("replication=database", "replication"),
        ("requirepeer=postgres", "requirepeer"),
        ("krbsrvname=x", "krbsrvname"),
    ],
)
def test_what_is_of_the_member_is_refused_by_name_in_a_sentence(more: str, named: str) -> None:
    with pytest.raises(HerdError) as error:
        require_elsewhere(f"host=warehouse password=secret dbname=shop {more}")
    message = str(error.value)
    assert f"leave {named} out of the connection string" in message
    assert "secret" not in message and "/etc" not in message and "\n" not in message


def test_a_service_without_a_host_is_refused_too() -> None:
    with pytest.raises(HerdError, match="leave service out"):
        require_elsewhere("service=warehouse")


async def test_what_is_no_connection_string_names_no_option_of_some_commands_only() -> None:
    with pytest.raises(StoppedError, match=r"libpq: write postgresql://USER@HOST/DATABASE$"):
        await connections.connect("x='")
