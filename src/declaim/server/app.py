"""The application: routes joined, and every error of every route in one shape."""

from fastapi import FastAPI, Request, Response

from declaim import __version__
from declaim.contracts.engine import SpeechEngine
from declaim.contracts.errors import DeclaimError, EngineFailed
from declaim.server.errors import error_response, no_such_route, wrong_method
from declaim.server.health import health_router
from declaim.server.models import models_router
from declaim.server.openai import speech_router
from declaim.server.references import DecodeReference
from declaim.server.settings import ServerSettings
from declaim.server.speech import Served


def create_app(
    engine: SpeechEngine, settings: ServerSettings, decode_reference: DecodeReference
) -> FastAPI:
    """An ASGI application for a running engine, which stays the caller's to close.

    decode_reference: an audio file's bytes to float32 [n] mono at the engine's rate; it is called
    in a thread and raises DeclaimError for bytes that are not a usable clip.
    """
    app = FastAPI(
        title="declaim",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    served = Served(engine.info, settings, decode_reference)
    app.include_router(speech_router(engine, served))
    app.include_router(models_router(served))
    app.include_router(health_router(engine, settings))
    app.add_exception_handler(DeclaimError, _on_declaim_error)
    app.add_exception_handler(404, _on_no_route)
    app.add_exception_handler(405, _on_wrong_method)
    app.add_exception_handler(Exception, _on_fault)
    return app


async def _on_declaim_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, DeclaimError)
    return error_response(error)


async def _on_no_route(request: Request, error: Exception) -> Response:
    return no_such_route(request.url.path)


async def _on_wrong_method(request: Request, error: Exception) -> Response:
    allowed = (getattr(error, "headers", None) or {}).get("Allow", "")
    return wrong_method(request.method, request.url.path, allowed)


async def _on_fault(request: Request, error: Exception) -> Response:
    return error_response(EngineFailed("a fault in declaim itself"))
