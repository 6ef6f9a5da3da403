"""The lists of models, in the two shapes that clients ask for."""

import time

from fastapi import APIRouter, Response

from declaim.server.errors import JsonResponse
from declaim.server.speech import Served, model_names


def models_router(served: Served) -> APIRouter:
    """The routes of one engine; every name that it answers to is listed, its own first."""
    router = APIRouter()
    names = model_names(served)
    created = int(time.time())

    @router.get("/v1/models")
    async def models() -> Response:
        """OpenAI's list."""
        entries = [
            {"id": name, "object": "model", "created": created, "owned_by": "declaim"}
            for name in names
        ]
        return JsonResponse({"object": "list", "data": entries})

    @router.get("/v1/audio/models")
    @router.get("/audio/models")
    async def audio_models() -> Response:
        """The list that speech clients ask for."""
        return JsonResponse({"models": [{"id": name} for name in names]})

    return router
