"""A certificate authority of a herd's own: makes what members prove with who they are.

In memory: files and Secrets are kept and renewed by ``local.certificates`` and the operator.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

AUTHORITY_LASTS = timedelta(days=3650)
BACKDATED = timedelta(hours=1)
"""Clocks differ: a new certificate must not begin in another node's future."""
_MEMBER_USAGES = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
"""Members are both to each other."""
_NAME_MAX = 64


@dataclass(frozen=True, slots=True)
class Authority:
    """Signs certificates."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(cls, name: str, begins: datetime, lasts: timedelta = AUTHORITY_LASTS) -> "Authority":
        """Make one that has signed itself."""
        key = ec.generate_private_key(ec.SECP256R1())
        return cls.sign_itself(subject(name), key, begins, lasts)

    @classmethod
    def sign_itself(
        cls, own: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, lasts: timedelta
    ) -> "Authority":
        """Make one of a key that there is."""
        certificate = (
            _builder(own, own, key, begins, begins + lasts)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(certificate, key)

    @classmethod
    def load(cls, certificate: bytes, key: bytes) -> "Authority":
        """Read one, in PEM.

        Raises:
            ValueError: it is damaged, or of another kind than ours.
        """
        loaded = x509.load_pem_x509_certificate(certificate)
        try:
            private = serialization.load_pem_private_key(key, password=None)
        except TypeError as error:
            raise ValueError(f"the authority's key has a password: {error}") from error
        if not isinstance(private, ec.EllipticCurvePrivateKey):
            raise ValueError("the authority's key is of another kind than ours")
        if private.public_key() != loaded.public_key():
            raise ValueError("the authority's key is that of another certificate")
        return cls(loaded, private)

    def issue(
        self,
        name: str,
        begins: datetime,
        lasts: timedelta,
        *,
        owner: x509.Name | None = None,
        aliases: Iterable[str] = (),
        usages: Iterable[x509.ObjectIdentifier] = _MEMBER_USAGES,
    ) -> tuple[bytes, bytes]:
        """Make a key, and a certificate of it that ends with the authority's own at the latest.

        Args:
            name: of DNS, by which its owner goes.
            begins, lasts: its validity.
            owner: its subject; by default the first label of the name.
            aliases: other names of DNS.
            usages: what for.

        Returns:
            The certificate and the key, in PEM.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        own = subject(name.partition(".")[0]) if owner is None else owner
        ends = min(begins + lasts, self.certificate.not_valid_after_utc)
        names = x509.SubjectAlternativeName([x509.DNSName(one) for one in (name, *aliases)])
        signer = x509.AuthorityKeyIdentifier(key_id(self.certificate), None, None)
        certificate = (
            _builder(own, self.certificate.subject, key, begins, ends)
            .add_extension(names, critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
            .add_extension(signer, critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return pem(certificate), key_pem(key)


def subject(common_name: str, organization: str | None = None) -> x509.Name:
    """The name that a certificate is for; PostgreSQL writes it ``CN=...,O=...``."""
    names = [(NameOID.ORGANIZATION_NAME, organization), (NameOID.COMMON_NAME, common_name)]
    return x509.Name([x509.NameAttribute(oid, text[:_NAME_MAX]) for oid, text in names if text])


def key_id(certificate: x509.Certificate) -> bytes:
    """The id of a certificate's own key, by which those that it signs name their signer."""
    try:
        own = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    except x509.ExtensionNotFound:
        own = x509.SubjectKeyIdentifier.from_public_key(certificate.public_key())
    return own.digest


def may_sign(certificate: x509.Certificate) -> bool:
    """Whether it is an authority's; one of version 1 that has signed itself cannot say so."""
    try:
        return certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except x509.ExtensionNotFound:
        plain = certificate.version is x509.Version.v1
        return plain and certificate.issuer == certificate.subject


def pem(certificate: x509.Certificate) -> bytes:
    """A certificate as text."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """A private key as text, in the clear."""
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _builder(
    owner: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    begins: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    public_key = key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(owner)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
