"""What a server can be told, with its defaults."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSettings:
    """Limits and habits of one server.

    strict_fields: refuse unknown fields of a request body instead of naming them in a header.
    aliases: also answer to OpenAI's model names. body_bytes: largest request body.
    body_seconds: longest wait for a whole request body. heartbeat_seconds: an engine with work
    that has not come round for longer is not ready. kept_outcomes: finished requests that can
    still be asked about.
    """

    strict_fields: bool = False
    aliases: bool = True
    body_bytes: int = 16 * 2**20
    body_seconds: float = 30.0
    heartbeat_seconds: float = 30.0
    kept_outcomes: int = 1024
