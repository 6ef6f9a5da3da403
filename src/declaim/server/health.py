"""Whether the process lives and whether the engine can serve: never 200 for one that hangs."""

from typing import Any

from fastapi import APIRouter, Response

from declaim.contracts.engine import SpeechEngine
from declaim.server.errors import JsonResponse
from declaim.server.settings import ServerSettings


def health_router(engine: SpeechEngine, settings: ServerSettings) -> APIRouter:
    """The routes of one engine."""
    router = APIRouter()

    def ready() -> tuple[bool, dict[str, Any]]:
        health = engine.health()
        fresh = health.heartbeat_seconds <= settings.heartbeat_seconds
        facts = {
            "ready": health.ready and fresh,
            "failure": health.failure,
            "heartbeat_seconds": round(health.heartbeat_seconds, 3),
        }
        return health.ready and fresh, facts

    @router.get("/health/live")
    async def live() -> Response:
        """The process answers."""
        return JsonResponse({"live": True})

    @router.get("/health/ready")
    async def is_ready() -> Response:
        """The engine is loaded, has not failed, and its loops come round."""
        good, facts = ready()
        return JsonResponse(facts, 200 if good else 503)

    @router.get("/health")
    async def both() -> Response:
        """Alive and ready."""
        good, facts = ready()
        return JsonResponse({"live": True, **facts}, 200 if good else 503)

    return router
