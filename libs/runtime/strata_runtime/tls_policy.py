"""The lowest TLS version and the ciphers that a server or a caller takes.

Suites have their names of the IANA registry in configuration; OpenSSL has names of its own. Only
suites of TLS 1.2 can be chosen: those of TLS 1.3 are few and all of them are good.
"""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from strata_runtime.errors import ConfigError

TlsVersion: TypeAlias = Literal["1.2", "1.3"]

_VERSIONS: Mapping[TlsVersion, ssl.TLSVersion] = MappingProxyType(
    {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}
)

CIPHERS: Mapping[str, str] = MappingProxyType(
    {
        "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
        "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    }
)
"""Suites of TLS 1.2 with forward secrecy and authenticated encryption: OpenSSL's names."""


@dataclass(frozen=True, slots=True)
class TlsPolicy:
    """The versions and ciphers that are taken.

    Attributes:
        min_version: the lowest version of TLS.
        ciphers: suites of TLS 1.2, keys of `CIPHERS`; empty: those that
            OpenSSL thinks are safe.
    """

    min_version: TlsVersion = "1.2"
    ciphers: tuple[str, ...] = ()

    @classmethod
    def checked(cls, min_version: TlsVersion, ciphers: tuple[str, ...]) -> TlsPolicy:
        """Return a policy from a configuration.

        Raises:
            ConfigError: a suite is unknown.
        """
        for cipher in ciphers:
            if cipher not in CIPHERS:
                known = ", ".join(CIPHERS)
                raise ConfigError(f"unknown TLS cipher {cipher!r}; choose from {known}")
        return cls(min_version, ciphers)

    def openssl_ciphers(self) -> str:
        """Return the chosen suites of TLS 1.2 as OpenSSL names them; empty: none were chosen."""
        return ":".join(CIPHERS[cipher] for cipher in self.ciphers)

    def restrict(self, context: ssl.SSLContext) -> None:
        """Let a context take nothing else."""
        context.minimum_version = _VERSIONS[self.min_version]
        if self.ciphers:
            context.set_ciphers(self.openssl_ciphers())
