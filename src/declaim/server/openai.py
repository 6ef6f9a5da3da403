"""POST /v1/audio/speech as OpenAI's clients send it, and how a request ended."""

import asyncio
import re
import secrets
import uuid

from fastapi import APIRouter, Request, Response

from declaim.contracts.engine import SpeechEngine
from declaim.contracts.errors import Cancelled, DeclaimError, InvalidRequest, NotFound, TooLarge
from declaim.contracts.request import MAX_SEED, SpeechRequest, shown
from declaim.server.body import SpeechBody, parse_body
from declaim.server.delivery import AnswerFormat, SpeechResponse
from declaim.server.errors import JsonResponse, error_response
from declaim.server.outcomes import Outcomes
from declaim.server.settings import ServerSettings
from declaim.server.speech import Asked, Served, as_field, read_speech

PARSED_AT_ONCE = 65536
"""Larger bodies are read in a thread, so that other streams do not wait for them."""


def speech_router(engine: SpeechEngine, served: Served) -> APIRouter:
    """The routes of one engine."""
    outcomes = Outcomes(served.settings.kept_outcomes)
    router = APIRouter()
    schema = {"content": {"application/json": {"schema": SpeechBody.model_json_schema()}}}

    @router.post("/v1/audio/speech", openapi_extra={"requestBody": schema})
    async def speak(request: Request) -> Response:
        """Speak a text."""
        request_id = uuid.uuid4().hex
        try:
            _check_kind(request)
            raw = await read_body(request, served.settings)
            body, speech, answer = await _read(raw, served, request_id)
            try:
                stream = engine.speak(speech)
            except DeclaimError as error:
                raise as_field(error, body) from error
        except DeclaimError as error:
            return error_response(error, request_id)
        outcomes.start(request_id, answer.seed)
        return SpeechResponse(stream, answer, outcomes)

    @router.get("/v1/audio/speech/{request_id}")
    async def outcome(request_id: str) -> Response:
        """How a request ended, or that it runs."""
        record = outcomes.get(request_id)
        if record is None:
            raise NotFound(
                f"there is no request {shown(request_id)} among the last "
                f"{served.settings.kept_outcomes}",
                param="request_id",
                value=request_id,
            )
        return JsonResponse(record)

    return router


async def _read(
    raw: bytes, served: Served, request_id: str
) -> tuple[SpeechBody, SpeechRequest, AnswerFormat]:
    quick = len(raw) <= PARSED_AT_ONCE
    body, unknown = parse_body(raw) if quick else await asyncio.to_thread(parse_body, raw)
    asked = Asked(body, unknown, request_id, secrets.randbelow(MAX_SEED + 1))
    if body.ref_audio or body.references:
        return body, *await asyncio.to_thread(read_speech, asked, served)
    return body, *read_speech(asked, served)


def _check_kind(request: Request) -> None:
    """Raise unless the headers announce plain JSON, or nothing."""
    kind = request.headers.get("content-type", "application/json").partition(";")[0].strip()
    if kind.lower() != "application/json":
        raise InvalidRequest(
            f"content-type must be application/json, not {shown(kind)}",
            param="content-type",
            limit="application/json",
            value=kind,
        )
    coding = request.headers.get("content-encoding", "identity")
    if coding.lower() != "identity":
        raise InvalidRequest(
            f"a body in content-encoding {shown(coding)} is not read",
            param="content-encoding",
            limit="identity",
            value=coding,
        )


async def read_body(request: Request, settings: ServerSettings) -> bytes:
    """The whole body; raises TooLarge over the limit, InvalidRequest when it does not come."""
    declared = request.headers.get("content-length", "")
    if re.fullmatch("[0-9]{1,18}", declared):
        _check_length(int(declared), settings.body_bytes)
    data = bytearray()
    more = True
    try:
        async with asyncio.timeout(settings.body_seconds):
            while more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Cancelled("the client went away")
                data += message.get("body", b"")
                more = message.get("more_body", False)
                _check_length(len(data), settings.body_bytes)
    except TimeoutError as error:
        raise InvalidRequest(
            f"the body did not arrive within {settings.body_seconds:g} s",
            param="body",
            limit=settings.body_seconds,
        ) from error
    return bytes(data)


def _check_length(length: int, limit: int) -> None:
    if length > limit:
        raise TooLarge(
            f"a body must have at most {limit} bytes, not {length}",
            param="body",
            limit=limit,
            value=length,
        )
