"""How a herd comes from one authority to another, which somebody has put into its secret.

Members that trust different authorities refuse each other, and each kubelet brings a changed secret
in its own time. So first all trust both, then all are certified by the new one, and at last the
former one is trusted no more. A member shows by its answers what it has got so far: it trusts who
asks, and is trusted. So in both changes the operator's own certificate goes ahead, and the others'
follow when all members have answered it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from pgherd_operator.core.observed import Observed, Secret
from pgherd_operator.objects import names

_PATIENCE = timedelta(hours=1, minutes=10)
"""From when a certificate begins, an hour before it is made, until kubelets have brought it."""


@dataclass(frozen=True, slots=True)
class Succession:
    """How far the herd's certificates are from those that its authority would make today.

    Attributes:
        authority: its secret.
        ends: when the authority does.
        operator: name of the operator's own certificate.
        held: the certificates of the members, the operator and the jobs that can be read.
        silent: names of the members that run and have not answered the operator.
    """

    authority: Secret
    ends: datetime
    operator: str
    held: Mapping[str, Secret]
    silent: tuple[str, ...]

    def is_former(self, secret: Secret) -> bool:
        """Whether another authority has signed this certificate."""
        return secret.signer != self.authority.authority

    def may_replace(self, secret: Secret, now: datetime) -> bool:
        """Whether all would trust a certificate of the authority in place of this former one's.

        One that is about to run out does not wait for ever for those who are silent.
        """
        if not all(self.authority.trusts <= one.trusts for one in self.held.values()):
            return False
        ahead = self.held.get(self.operator)
        if secret.name == self.operator:
            return True
        if ahead is not None and self.is_former(ahead):
            return False
        followed = ahead is not None and not self.silent
        begun = ahead.issued_at if ahead is not None else None
        waited = begun is None or now - begun >= _PATIENCE
        return followed or (waited and secret.runs_out(now, by_hand=False))

    def trusted(self, name: str) -> frozenset[str]:
        """The authorities that the secret of a certificate is to tell of."""
        new, held = self.authority.trusts, self.held.get(name)
        every = new.union(*(one.trusts for one in self.held.values()))
        if held is None or any(map(self.is_former, self.held.values())):
            return every
        ahead = self.held.get(self.operator)
        followed = ahead is not None and ahead.trusts == new and not self.silent
        return new if name == self.operator or followed else held.trusts | new

    @property
    def text(self) -> str:
        """The changes that are still to come; empty if none is."""
        former = sorted(name for name, one in self.held.items() if self.is_former(one))
        if former:
            text = f"the authority in {self.authority.name} is another now, and has yet to certify "
            text += ", ".join(former)
        elif any(one.trusts != self.authority.trusts for one in self.held.values()):
            text = f"not all trust just those authorities that {self.authority.name} has"
        else:
            return ""
        return f"{text}; to answer first: {', '.join(self.silent)}" if self.silent else text


def find_succession(observed: Observed) -> Succession | None:
    """Compare the herd's certificates with its authority; None if it has none that can be used."""
    cluster, secrets = observed.cluster, observed.secrets
    herd, authority = cluster.name, secrets.get(names.authority(cluster.name))
    if cluster.spec.tls.mode != "SelfSigned" or authority is None:
        return None
    if not authority.authority or authority.not_after is None:
        return None
    operator = names.operator_certificate(herd)
    wanted = {operator, names.jobs_certificate(herd)}
    wanted |= {names.certificate(herd, number) for number in observed.certified()}
    running = {n for n, pod in observed.pods.items() if not (pod.deleting or pod.pending)}
    return Succession(
        authority=authority,
        ends=authority.not_after,
        operator=operator,
        held={
            name: secrets[name]
            for name in wanted & secrets.keys()
            if secrets[name].ours and secrets[name].not_after is not None
        },
        silent=tuple(names.member(herd, n) for n in sorted(running - observed.reports.keys())),
    )
