"""Mapping of S3 answers and failures of boto3 to the port's errors: one table for all dialects.

A code that is in no list counts by its HTTP status; an unknown status is "unavailable", which is
retried and then reported, never taken for "not there".
"""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    CredentialRetrievalError,
    FlexibleChecksumError,
    IncompleteReadError,
    NoCredentialsError,
    PartialCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
    TokenRetrievalError,
)

from strata_tier.store.ports import (
    CorruptTransferError,
    ObjectExistsError,
    ObjectNotFoundError,
    ObjectTooShortError,
    RefusedError,
    StoreError,
    StoreFullError,
    StoreMissingError,
    StoreTimeoutError,
    StoreUnavailableError,
    ThrottledError,
)


class UploadGoneError(StoreUnavailableError):
    """The multipart upload is not known any more: it was completed, aborted or lost."""

    retryable = False


_CODES: dict[str, type[StoreError]] = {
    **dict.fromkeys(("NoSuchBucket", "NoSuchBucketException"), StoreMissingError),
    **dict.fromkeys(("NoSuchKey", "NotFound", "404"), ObjectNotFoundError),
    "NoSuchUpload": UploadGoneError,
    "InvalidRange": ObjectTooShortError,
    **dict.fromkeys(("PreconditionFailed", "ConditionalRequestConflict"), ObjectExistsError),
    **dict.fromkeys(
        (
            "BadDigest",
            "InvalidDigest",
            "IncompleteBody",
            "InvalidPart",
            "XAmzContentChecksumMismatch",
            "XAmzContentSHA256Mismatch",
        ),
        CorruptTransferError,
    ),
    **dict.fromkeys(
        (
            "SlowDown",
            "SlowDownRead",
            "SlowDownWrite",
            "Throttling",
            "ThrottlingException",
            "RequestLimitExceeded",
            "TooManyRequests",
            "QpsLimitExceeded",
        ),
        ThrottledError,
    ),
    "RequestTimeout": StoreTimeoutError,
    **dict.fromkeys(("QuotaExceeded", "XMinioStorageFull", "InsufficientStorage"), StoreFullError),
    **dict.fromkeys(
        (
            "AccessDenied",
            "AuthorizationHeaderMalformed",
            "ExpiredToken",
            "InvalidAccessKeyId",
            "InvalidToken",
            "PermanentRedirect",
            "RequestTimeTooSkewed",
            "SignatureDoesNotMatch",
            "XAdminUserNotFound",
            "XMinioInvalidAccessKeyId",
        ),
        RefusedError,
    ),
}

_STATUSES: dict[int, type[StoreError]] = {
    401: RefusedError,
    403: RefusedError,
    404: ObjectNotFoundError,
    408: StoreTimeoutError,
    412: ObjectExistsError,
    416: ObjectTooShortError,
    429: ThrottledError,
    504: StoreTimeoutError,
    507: StoreFullError,
}

_FAILURES: tuple[tuple[tuple[type[BotoCoreError], ...], type[StoreError]], ...] = (
    ((ConnectTimeoutError, ReadTimeoutError), StoreTimeoutError),
    (
        (IncompleteReadError, ResponseStreamingError, FlexibleChecksumError),
        CorruptTransferError,
    ),
    (
        (
            NoCredentialsError,
            PartialCredentialsError,
            CredentialRetrievalError,
            TokenRetrievalError,
        ),
        RefusedError,
    ),
)


def translated(error: BotoCoreError | ClientError, store: str, key: str) -> StoreError:
    """Return the port's error for one of boto3."""
    if isinstance(error, ClientError):
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        told = error.response.get("Error", {})
        return of_code(str(told.get("Code", "")), status, told.get("Message", ""), store, key)
    for failures, kind in _FAILURES:
        if isinstance(error, failures):
            return kind(store, key, str(error))
    return StoreUnavailableError(store, key, str(error))


def of_code(code: str, status: int, message: str, store: str, key: str) -> StoreError:
    """Return the port's error for a code of S3 and an HTTP status, 0 if there is none."""
    kind = _CODES.get(code) or _STATUSES.get(status, StoreUnavailableError)
    return kind(store, key, " ".join(filter(None, (str(status or ""), code, message))))
