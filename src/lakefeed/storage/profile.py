"""Profiles of ``~/.aws``: keys, region and endpoint of an S3 store, as the AWS command line reads them.

Obstore, deltalake, pyarrow and Hadoop's connector read profiles in four ways, or not at all. So Lakefeed reads them
once, and gives all of them the same keys. Where a value comes from, the first that has it:

    1  the section ``storage``, or what a call was given
    2  the profile that ``storage.profile`` names
    3  the environment: AWS_ACCESS_KEY_ID and the others, which the libraries read themselves
    4  the profile that AWS_PROFILE names, or the one called ``default``
    5  the role of the instance, the container or the service account: the libraries again

Read are static keys. Profiles that get theirs elsewhere (single sign-on, a role to assume, a process) are refused where
they are named; a ``default`` of that kind is passed over, with a warning.
"""

from __future__ import annotations

import configparser
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from lakefeed.errors import ConfigError

log = logging.getLogger(__name__)

_KEYS = {
    "access_key_id": ("AWS_ACCESS_KEY_ID",),
    "secret_access_key": ("AWS_SECRET_ACCESS_KEY",),
    "session_token": ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
}
"""Options, which belong together, and the variables that give them."""
_PLACES = {"region": ("AWS_REGION", "AWS_DEFAULT_REGION"), "endpoint": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")}
_ELSEWHERE = ("sso_session", "sso_start_url", "role_arn", "credential_process", "web_identity_token_file")


def with_profile(options: Mapping[str, str]) -> dict[str, str]:
    """The options of an S3 store, with what the profile adds that is to be used. Makes no request."""
    found = dict(options)
    given = {name.lower().removeprefix("aws_").replace("endpoint_url", "endpoint") for name in found}
    wanted = found.pop("profile", None)
    named = wanted or os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")
    has_keys = given & _KEYS.keys() or given & {"skip_signature"}
    if not wanted and (has_keys or _in_environment("access_key_id")):
        named_keys: dict[str, str] = {}  # keys that are given elsewhere come first
        profile = _read(named or "default", must_be_there=False)
    else:
        profile = _read(named or "default", must_be_there=named is not None)
        named_keys = {} if has_keys else {name: profile[f"aws_{name}"] for name in _KEYS if f"aws_{name}" in profile}
        if not named_keys and not has_keys and (elsewhere := [name for name in _ELSEWHERE if name in profile]):
            text = (
                f"the profile '{named or 'default'}' of ~/.aws gets its keys by {elsewhere[0]}, which is not supported"
            )
            remedy = (
                "Put them into the environment before the start: "
                f'eval "$(aws configure export-credentials --profile {named or "default"} --format env)"'
            )
            if named is not None:
                raise ConfigError(text, remedy=remedy)
            log.warning("%s. %s", text, remedy)
    found |= named_keys
    for option, name in (("region", "region"), ("endpoint", "endpoint_url")):
        if option not in given and name in profile and (wanted or not _in_environment(option)):
            found[option] = profile[name]
    return found


def _in_environment(option: str) -> bool:
    return any(os.environ.get(name) for name in (_KEYS | _PLACES)[option])


def _read(profile: str, *, must_be_there: bool) -> dict[str, str]:
    """What both files say of a profile; of keys, the credentials file has the last word."""
    home, found, is_there = Path.home() / ".aws", dict[str, str](), False
    config = Path(os.environ.get("AWS_CONFIG_FILE") or home / "config").expanduser()
    credentials = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / "credentials").expanduser()
    sections = ((config, "default" if profile == "default" else f"profile {profile}"), (credentials, profile))
    for path, section in sections:
        parser = configparser.RawConfigParser(default_section="", strict=False)
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, configparser.Error, UnicodeDecodeError) as error:
            if not must_be_there:
                continue
            reason = type(error).__name__  # its text may have a line of the file, and that a key
            raise ConfigError(f"{path} cannot be read ({reason})", remedy="Correct it: aws configure") from None
        if parser.has_section(section):
            is_there = True
            found |= {name.strip(): value.strip() for name, value in parser.items(section) if value}
    if must_be_there and not is_there:
        remedy = f"Write it with `aws configure --profile {profile}`, or name another one."
        raise ConfigError(f"there is no profile '{profile}' in {config} or {credentials}", remedy=remedy)
    return found
