"""Create the bucket of the tier; it waits for the store. Run in the image `storage`."""

from __future__ import annotations

import sys
import time

import boto3
from botocore.exceptions import BotoCoreError, ClientError

TRIES = 60
THERE = ("BucketAlreadyOwnedByYou", "BucketAlreadyExists")


def main() -> int:
    """Create it; the exit code says whether it is there."""
    endpoint, bucket = sys.argv[1:]
    client = boto3.client("s3", endpoint_url=endpoint, region_name="us-east-1")
    reason = ""
    for _ in range(TRIES):
        try:
            client.create_bucket(Bucket=bucket)
        except ClientError as error:
            if error.response["Error"]["Code"] in THERE:
                return 0
            reason = str(error)
        except BotoCoreError as error:
            reason = str(error)
        else:
            return 0
        time.sleep(1)
    print(f"bucket {bucket} cannot be created: {reason}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
