"""Access control without I/O: who signed a request, and what its policies allow.

`signatures` says who calls, `policies` what the caller may do, `sessions` makes and reads
temporary keys, `peers` names the brokers of the cluster. Brokers hold the rows and do the checks
(docs/security.md).
"""

from strata_mq.access.keys import new_secret_key
from strata_mq.access.peers import key_id_of_peer, peer_access_key, peer_secret_key
from strata_mq.access.policies import (
    Action,
    Policy,
    PolicyDecision,
    Resource,
    ResourceKind,
    ResourcePattern,
    Source,
    Verdict,
    decide,
    parse_actions,
    parse_resource,
    parse_source,
)
from strata_mq.access.sessions import Session, issue_session, read_session
from strata_mq.access.signatures import (
    ClockWindow,
    SignedHeader,
    content_signature_is_right,
    date_of,
    parse_authorization,
    sign,
    signature_is_right,
)

__all__ = [
    "Action",
    "ClockWindow",
    "Policy",
    "PolicyDecision",
    "Resource",
    "ResourceKind",
    "ResourcePattern",
    "Session",
    "SignedHeader",
    "Source",
    "Verdict",
    "content_signature_is_right",
    "date_of",
    "decide",
    "issue_session",
    "key_id_of_peer",
    "new_secret_key",
    "parse_actions",
    "parse_authorization",
    "parse_resource",
    "parse_source",
    "peer_access_key",
    "peer_secret_key",
    "read_session",
    "sign",
    "signature_is_right",
]
