"""A ZooKeeper that speaks TLS, and one that lets nobody in without a login of SASL's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates
from cryptography.x509 import load_pem_x509_certificate
from daemons import free_ports
from ensemble import Ensemble, is_installed

USER, PASSWORD = "quire", "s3cret-of-quire"
OTHER, OTHER_PASSWORD = "other", "s3cret-of-other"
_STORE_PASSWORD = "of-the-keystore"
_JAAS = f"""Server {{
  org.apache.zookeeper.server.auth.DigestLoginModule required
  user_{USER}="{PASSWORD}"
  user_{OTHER}="{OTHER_PASSWORD}";
}};
"""


class SecuredZooKeeper:
    """One ZooKeeper under *folder*, with a TLS port for 127.0.0.1 and the files of its clients."""

    def __init__(self, folder: Path, *, login: bool, clients: bool = False) -> None:
        """*login*: it wants one. *clients*: it wants a certificate, too."""
        self.folder = folder
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.certificate, self.key = folder / "client.pem", folder / "client-key.pem"
        mine = self.authority.issue_cert("client.example")
        mine.cert_chain_pems[0].write_to_path(str(self.certificate))
        mine.private_key_pem.write_to_path(str(self.key))
        self.password_file = folder / "password"
        self.password_file.write_text(PASSWORD + "\n")
        self.secure_port = free_ports(1)
        settings = [
            "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
            f"secureClientPort={self.secure_port}",
            "secureClientPortAddress=127.0.0.1",
            f"ssl.keyStore.location={self._keystore()}",
            f"ssl.keyStore.password={_STORE_PASSWORD}",
            "ssl.keyStore.type=PKCS12",
            f"ssl.trustStore.location={self.ca}",
            "ssl.trustStore.type=PEM",
            f"ssl.clientAuth={'need' if clients else 'none'}",
        ]
        options = []
        if login:
            jaas = folder / "jaas.conf"
            jaas.write_text(_JAAS)
            options.append(f"-Djava.security.auth.login.config={jaas}")
            settings += [
                "authProvider.sasl=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
                "enforce.auth.enabled=true",
                "enforce.auth.schemes=sasl",
            ]
        self.server = Ensemble(folder, 1, settings=settings, options=options)

    @property
    def plain(self) -> str:
        """The address without TLS."""
        return self.server.hosts

    @property
    def secure(self) -> str:
        """The address with TLS."""
        return f"127.0.0.1:{self.secure_port}"

    def _keystore(self) -> Path:
        issued = self.authority.issue_cert("127.0.0.1")
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        certificate = load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
        path = self.folder / "server.p12"
        path.write_bytes(
            serialize_key_and_certificates(
                b"server", key, certificate, None, BestAvailableEncryption(_STORE_PASSWORD.encode())
            )
        )
        return path


@contextmanager
def secured_zookeeper(
    folder: Path, *, login: bool = False, clients: bool = False
) -> Iterator[SecuredZooKeeper]:
    """Run one for the length of the block."""
    if not is_installed():
        pytest.fail("Java and Debian's package zookeeper are missing")
    found = SecuredZooKeeper(folder, login=login, clients=clients)
    found.server.start()
    try:
        found.server.wait()
        yield found
    finally:
        found.server.kill()
