"""Who is asked: the admin APIs of members, on this machine by a socket, elsewhere by certificates.

Used by ``datasource`` and by the driver on Kubernetes. Opens nothing by itself.
"""

import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pgherd_sidecar.client.admin import AdminClient, RemoteAdminClient
from pgherd_sidecar.env.network.tls import certified_name

CA, CERTIFICATE, KEY = "ca.crt", "tls.crt", "tls.key"
_ELSEWHERE = re.compile(r"(?P<name>[^/@=]+)=(?P<host>.+):(?P<port>\d+)")


@dataclass(frozen=True, slots=True)
class Certificates:
    """What a job shows to members elsewhere.

    Attributes:
        directory: holds ``ca.crt``, ``tls.crt`` and ``tls.key``.
        cluster_id: of the herd whose members are trusted.
    """

    directory: Path
    cluster_id: str

    def context(self) -> ssl.SSLContext:
        """For connections, with the files as they are now.

        Raises:
            OSError: a file can't be read, or is no certificate.
        """
        context = ssl.create_default_context(cafile=self.directory / CA)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.directory / CERTIFICATE, self.directory / KEY)
        return context


def clients(addresses: Sequence[str], certificates: Certificates | None) -> list[AdminClient]:
    """Clients of members.

    Args:
        addresses: paths of sockets, and ``NAME=HOST:PORT`` of members elsewhere.
        certificates: for those.

    Raises:
        ValueError: a member elsewhere is named, and there are no certificates.
        OSError: these can't be read.
    """
    found: list[AdminClient] = []
    context = certificates.context() if certificates is not None else None
    for address in addresses:
        elsewhere = _ELSEWHERE.fullmatch(address)
        if elsewhere is None:
            found.append(AdminClient(Path(address)))
        elif certificates is None or context is None:
            raise ValueError(f"{address} needs the options `certificates` and `cluster`")
        else:
            certified = certified_name(elsewhere["name"], certificates.cluster_id)
            port = int(elsewhere["port"])
            found.append(RemoteAdminClient(elsewhere["host"], port, context, certified))
    return found
